"""Executes one run: records the deltas of its reply and writes its events."""
