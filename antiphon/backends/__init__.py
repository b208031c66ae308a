"""Backends: whatever turns a conversation into deltas."""
