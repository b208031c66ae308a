"""Runs, their logs and their readers. All asyncio tasks of the package's core start here."""
