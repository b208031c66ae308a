"""What a request asks for: options, tools, attachments."""
