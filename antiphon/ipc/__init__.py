"""Calls between processes. They use Unix sockets within a server, and HTTP between servers."""
