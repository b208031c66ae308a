"""Backends over other servers' HTTP APIs."""
