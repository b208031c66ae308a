"""Clients of other servers over HTTP: connections, retries, streams, errors."""
