"""Endpoints of the objects, other than responses, that clients manage."""
