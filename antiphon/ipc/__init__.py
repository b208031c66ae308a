"""Calls between the processes of one server, over Unix sockets."""
