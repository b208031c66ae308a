"""Real boxes for tests; skips the test where this machine cannot have them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.errors import SetupError
from antiphon.sandbox.agent_client import AgentBox
from antiphon.sandbox.base import Limits
from antiphon.sandbox.bubblewrap import BoxSetup, Bubblewrap

#: Small limits, so that tests exceed them quickly.
SMALL = Limits(memory_bytes=256 << 20, disk_bytes=8 << 20, processes=32)


async def sandbox(limits: Limits = SMALL, pool: int = 0) -> Bubblewrap:
    """Return a working sandbox, or skip the test."""
    try:
        bubblewrap = Bubblewrap(BoxSetup.detect(), default_limits=limits, pool_size=pool)
        await bubblewrap.check()
    except SetupError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    return bubblewrap


@asynccontextmanager
async def open_box(limits: Limits = SMALL) -> AsyncIterator[AgentBox]:
    """Open a box for the duration of a test."""
    bubblewrap = await sandbox(limits)
    box = await bubblewrap.open(limits)
    try:
        yield box
    finally:
        await box.close()
        await bubblewrap.close()
