"""Replies that extend a model call: compaction, reasoning summaries, raw messages, and prompt
warm-up."""
