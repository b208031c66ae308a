"""Several processes that serve one port: a supervisor, its workers, and the state that they
share."""
