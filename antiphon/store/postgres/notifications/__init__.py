"""Notifications about runs and their events, between the Antiphon processes that share a PostgreSQL
store."""
