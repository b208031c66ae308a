"""What the server can run."""
