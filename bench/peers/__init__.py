"""Antiphon and other servers of the Responses API, over one scripted upstream."""
