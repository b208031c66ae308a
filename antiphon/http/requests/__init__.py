"""Reading HTTP requests: bodies, forms, query strings, idempotency keys."""
