"""When a process claims runs that others have queued."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.store.common import claimable_runs
from antiphon.store.common.claimable_runs import ClaimableRuns


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimable_runs, "_MIN_WAIT_S", 0.0)
    monkeypatch.setattr(claimable_runs, "_MAX_WAIT_S", 0.0)


async def test_runs_that_nobody_claims_are_claimed() -> None:
    claimed = asyncio.Event()
    runs = ClaimableRuns(claimed.set)
    runs.add(["a"])
    runs.add(["b"])
    runs.remove(["a"])
    await asyncio.wait_for(claimed.wait(), 60)


async def test_runs_that_are_claimed_meanwhile_wake_nobody() -> None:
    claimed, later = asyncio.Event(), asyncio.Event()
    runs = ClaimableRuns(claimed.set)
    runs.add(["a"])
    runs.remove(["a"])
    asyncio.get_running_loop().call_later(0, later.set)
    await asyncio.wait_for(later.wait(), 60)
    assert not claimed.is_set()
