"""RPC calls between processes, over Unix sockets within a server and over HTTP between servers."""
