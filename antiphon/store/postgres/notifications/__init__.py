"""Notifications about runs and their events, between the processes of one PostgreSQL store."""
