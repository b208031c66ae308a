"""Served models: their catalog, the factories of their backends, and their downloads. This package
also reads the files in which an operator describes how models write tool calls and reasoning."""
