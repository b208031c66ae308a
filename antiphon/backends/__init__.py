"""Backends. A backend answers a conversation. It yields the answer as deltas."""
