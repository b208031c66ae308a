"""How processes on one PostgreSQL tell each other of runs and events."""
