"""Backends. A backend answers a conversation. It gives the answer as deltas."""
