"""The command line and the terminal chat client."""
