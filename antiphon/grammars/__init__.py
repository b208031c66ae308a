"""Checks of clients' grammars in a process of their own."""
