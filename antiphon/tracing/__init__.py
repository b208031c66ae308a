"""Traces: what a request spent its time on, as spans."""
