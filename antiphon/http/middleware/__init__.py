"""ASGI middleware: authentication, request context, errors."""
