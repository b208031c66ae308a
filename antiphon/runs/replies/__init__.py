"""Replies that do more than return the model's answer: they compact the conversation, add a summary
of the reasoning or the raw messages, or only fill the prefix cache (prompt warm-up)."""
