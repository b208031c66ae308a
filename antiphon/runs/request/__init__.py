"""What a request specifies: its options, tools and attachments."""
