"""Tools that the client runs: local shell, shell, apply_patch and computer."""
