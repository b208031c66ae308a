"""The cache forgets values by their age."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.support.aging_cache import AgingCache


async def test_value_that_is_too_old_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    cache: AgingCache[str] = AgingCache(max_bytes=9, max_age_s=60)
    loop = asyncio.get_running_loop()
    start = loop.time()
    monkeypatch.setattr(loop, "time", lambda: start)
    cache.add(("t", "name"), "value", 1)
    monkeypatch.setattr(loop, "time", lambda: start + 60)
    entry = cache.get(("t", "name"))
    assert entry is not None and entry.value == "value"
    monkeypatch.setattr(loop, "time", lambda: start + 61)
    assert cache.get(("t", "name")) is None and cache.size_bytes == 0
