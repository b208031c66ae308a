"""The rim: HTTP in, HTTP out."""
