"""An engine over a server's token-level completions endpoint."""
