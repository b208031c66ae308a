"""Objects that operators manage: API keys, limits, usage, the audit log."""
