"""Other people's servers, spoken to over HTTP: the pool, retries, streams, and what they refuse."""
