"""The ways in which a PostgreSQL store finds the nearest vectors."""
