"""How several worker processes share one SQLite store."""
