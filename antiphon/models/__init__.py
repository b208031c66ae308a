"""Served models: the catalog, one factory per engine, downloads, users' format files."""
