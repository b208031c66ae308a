"""The HTTP server: routes, middleware, request parsing, streaming."""
