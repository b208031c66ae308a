"""Embedders. An embedder turns texts into vectors."""
