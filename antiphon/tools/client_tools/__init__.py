"""Tools that the client runs: local shell, apply_patch, computer."""
