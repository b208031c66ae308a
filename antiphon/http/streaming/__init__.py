"""Send streamed HTTP responses: encode events as SSE, send keepalives, and cancel the work for a
response when its client disconnects."""
