"""The heart: deltas become events, and a response is the fold of its events. Sans-IO."""
