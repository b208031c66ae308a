"""Endpoints of the objects that clients manage, such as files and conversations. The endpoints of
responses are in ``responses.py``."""
