"""Dialects. A dialect knows how one model family writes: it renders prompts and parses the model's
output. It does no input or output itself (sans-IO)."""
