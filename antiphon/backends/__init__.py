"""Backends. A backend turns a conversation into deltas."""
