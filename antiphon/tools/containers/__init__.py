"""Containers: sandboxes with a name, an owner and an expiry time.

Each container has a box: the isolated environment in which its code runs. The owner of a container
is the process that created it and holds its box. Other processes use the container through RPC
calls to its owner.
"""
