"""Streamed responses: SSE, keepalives, client disconnects."""
