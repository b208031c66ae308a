"""An engine that sends the token ids of a prompt to the completions endpoint of an upstream server,
and gets the ids of the next tokens from it."""
