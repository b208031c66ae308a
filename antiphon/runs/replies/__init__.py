"""Replies around a model call: compaction, reasoning summaries, raw messages, prompt warm-up."""
