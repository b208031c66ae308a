"""Code that runs inside the sandbox; it imports nothing of the server."""
