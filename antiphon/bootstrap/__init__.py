"""Builds a server from its settings."""
