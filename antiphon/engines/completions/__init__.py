"""An engine that continues token ids on a server, through the server's completions endpoint."""
