"""A backend that calls the Responses API of an upstream server."""
