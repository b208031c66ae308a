"""Containers: sandboxes with a name, an owner and an expiry."""
