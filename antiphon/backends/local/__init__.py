"""The local backend. It combines an engine with the dialect of the engine's model, which renders
prompts and parses output."""
