"""Tracing: spans that show how long each step of a request takes."""
