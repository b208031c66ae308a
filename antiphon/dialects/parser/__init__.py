"""The streaming parser of a model's output."""
