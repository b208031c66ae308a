"""The agent loop: model turns and server-side tool calls."""
