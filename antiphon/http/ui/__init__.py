"""The web page at ``/``: static files that use the public API."""

from __future__ import annotations
