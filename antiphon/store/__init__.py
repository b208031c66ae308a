"""Where responses, items and their tokens live, per tenant."""
