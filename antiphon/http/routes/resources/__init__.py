"""Endpoints of what clients manage besides responses."""
