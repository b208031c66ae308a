"""The tool loop: model turns and server-side tool calls."""
