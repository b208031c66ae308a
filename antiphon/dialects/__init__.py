"""How model families write: prompts rendered, output read. Sans-IO."""
