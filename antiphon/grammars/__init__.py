"""Check clients' grammars in a separate process."""
