"""Shipped for whoever writes an engine, a dialect, a backend or a store: doubles and checks."""
