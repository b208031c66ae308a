"""The local backend: an engine with a dialect."""
