"""Declare the settings of a server, and load them from a file, environment variables and flags."""
