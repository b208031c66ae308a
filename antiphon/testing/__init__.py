"""Doubles and contract checks for authors of engines, dialects, backends and stores. They are part
of the package."""
