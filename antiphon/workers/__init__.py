"""Several processes that serve one port: a supervisor, its workers, and what they share."""
