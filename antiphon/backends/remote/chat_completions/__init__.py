"""A backend that calls a Chat Completions API."""
