"""One run: from deltas to recorded events."""
