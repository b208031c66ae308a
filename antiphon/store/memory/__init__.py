"""The store in memory, the reference for the others."""
