"""The in-memory store, the reference implementation of a store."""
