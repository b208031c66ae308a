"""A backend over another server's Responses API."""
