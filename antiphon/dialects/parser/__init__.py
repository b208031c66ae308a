"""The streaming parser of model output."""
