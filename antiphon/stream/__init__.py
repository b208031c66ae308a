"""Events of a response: deltas become events, and a response is the fold of its events. Sans-IO."""
