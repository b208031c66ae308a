"""Replies that change what a request returns. Some replies compact the conversation, or add a
summary of the reasoning or the raw messages to the answer. Prompt warm-up fills the prefix cache
and returns no answer."""
