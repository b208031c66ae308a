"""Runs, their event logs and the readers of these logs. Every asyncio task of the package's core is
started here."""
