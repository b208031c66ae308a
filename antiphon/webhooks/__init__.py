"""Webhooks: telling another server that a background response is over."""
