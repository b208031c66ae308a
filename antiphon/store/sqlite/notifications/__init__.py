"""Notifications between the processes that share an SQLite database."""
