"""Code that runs inside the sandbox. It imports nothing from the server."""
