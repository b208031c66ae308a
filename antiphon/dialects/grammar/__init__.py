"""Grammars that constrain what a model can write."""
