"""Build a server from its settings."""
