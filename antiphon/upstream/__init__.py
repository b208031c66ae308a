"""HTTP clients for upstreams, which are other servers that run models: connections, retries,
streams and errors."""
