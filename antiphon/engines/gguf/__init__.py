"""GGUF files: header, metadata, requantization."""
