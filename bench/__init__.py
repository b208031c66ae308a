"""Measurements, printed as ratios taken in one run on one machine. Nothing here is a test."""
