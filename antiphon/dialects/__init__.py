"""Dialects. A dialect renders prompts in the syntax of one model family, and parses that family's
output. It only transforms data and does no I/O (sans-IO)."""
