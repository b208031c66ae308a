"""Chunking, exact vector search and rank fusion."""
