"""Grammars that constrain what a model may write."""
