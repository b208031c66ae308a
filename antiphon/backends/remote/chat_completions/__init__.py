"""A backend over a Chat Completions API."""
