"""Dialects: how model families write. They render prompts and parse output. Sans-IO."""
