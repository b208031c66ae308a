"""Limit concurrency fairly between tenants, and enforce the quotas of tenants."""
