"""Isolated execution of untrusted code."""
