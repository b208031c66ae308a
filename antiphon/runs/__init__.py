"""Runs, their event logs and the readers of the logs. A run is one attempt to produce one
response."""
