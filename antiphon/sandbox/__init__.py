"""Isolated execution of untrusted code.

A ``Sandbox`` opens boxes. A box is an isolated environment that runs code and holds files. Inside
each box runs an agent: a program that serves the requests of the server.
"""
