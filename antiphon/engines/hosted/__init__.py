"""An engine in another process of the same server."""
