"""Notifications about runs and events between the processes of one PostgreSQL store."""
