"""Clients of other servers over HTTP: connections, retries, streams, and the translation of errors."""
