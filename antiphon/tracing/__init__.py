"""Tracing: spans that show what the time of a request was spent on."""
