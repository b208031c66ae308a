"""A backend that calls the Responses API of another server."""
