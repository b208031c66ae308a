"""How a PostgreSQL store finds nearest vectors."""
