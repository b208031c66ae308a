"""Background runs: claims, leases, event logs, recovery."""
