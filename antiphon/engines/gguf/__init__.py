"""Functions for GGUF files. They read the header, build a model card from the metadata, and
requantize weights."""
