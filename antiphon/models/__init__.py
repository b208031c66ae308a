"""Served models: their catalog, the factories of their backends, their downloads, and format files
of the operator."""
