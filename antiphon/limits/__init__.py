"""Fair shares of places, and quotas of tenants."""
