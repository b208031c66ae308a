"""The tool loop: model calls, and server-side tool calls between them."""
