"""Dialects: how each model family writes. A dialect renders prompts and parses output. Sans-IO."""
