"""Webhooks: notify another server when a background response ends."""
