"""The in-memory store, the reference for the other stores."""
