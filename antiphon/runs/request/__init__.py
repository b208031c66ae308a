"""Read a request: its options, tools, approvals and attachments."""
