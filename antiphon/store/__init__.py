"""Where responses, items and their tokens live, per tenant."""

from __future__ import annotations

from pathlib import Path

from .base import Store

__all__ = ["open_store"]


async def open_store(url: str) -> Store:
    """The store a setting names: ``memory:``, ``sqlite:PATH``, or a path. Raises ``SetupError``."""
    if url == "memory:":
        from .memory import MemoryStore

        return MemoryStore()
    from .sqlite import SqliteStore

    return await SqliteStore.open(Path(url.removeprefix("sqlite:")).expanduser())
