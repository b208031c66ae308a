"""A real box for tests, or the reason why this machine can have none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.errors import SetupError
from antiphon.sandbox.agent_client import AgentBox
from antiphon.sandbox.base import Limits
from antiphon.sandbox.bubblewrap import Bubblewrap, Built

#: Little, so that what breaks a limit breaks it soon.
SMALL = Limits(memory_bytes=256 << 20, disk_bytes=8 << 20, processes=32)


async def sandbox(limits: Limits = SMALL, pool: int = 0) -> Bubblewrap:
    """One that works; the test is skipped where none can."""
    try:
        made = Bubblewrap(Built.find(), usual=limits, pool=pool)
        await made.check()
    except SetupError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    return made


@asynccontextmanager
async def opened(limits: Limits = SMALL) -> AsyncIterator[AgentBox]:
    made = await sandbox(limits)
    box = await made.open(limits)
    try:
        yield box
    finally:
        await box.close()
        await made.close()
