"""Hosted engines: engines that run in another process of the same Antiphon server."""
