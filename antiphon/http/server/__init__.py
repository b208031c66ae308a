"""The HTTP server: sockets, HTTP/1.1, WebSockets, and a shutdown that waits for runs to end."""
