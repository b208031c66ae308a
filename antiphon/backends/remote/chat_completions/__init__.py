"""A backend that calls the Chat Completions API of an upstream server."""
