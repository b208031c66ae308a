"""The local backend, which combines an engine with the dialect of the engine's model."""
