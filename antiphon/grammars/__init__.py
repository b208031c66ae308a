"""Check grammars from clients in a separate process."""
