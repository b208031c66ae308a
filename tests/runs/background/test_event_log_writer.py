"""The event log writer: how long it waits for events that share an append."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from antiphon.runs.background.event_log_writer import EventLogWriter, LogSink
from antiphon.store.base import Store
from antiphon.testing.run_check import begin_run
from antiphon.wire.events import OutputTextDelta

#: No test lasts so long, and any append lasts longer.
LONG_S, SHORT_S = 3600.0, 1e-9


async def rests_of(store: Store, monkeypatch: pytest.MonkeyPatch, *, flush_s: float) -> list[float]:
    """Return the pauses before appends that 1, 1, 20 and 20 runs share."""
    rests: list[float] = []
    sleep = asyncio.sleep

    async def record_rest(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    writer = EventLogWriter(store.runs, flush_s=flush_s)
    claims = [await begin_run(store, str(n)) for n in range(20)]
    monkeypatch.setattr(asyncio, "sleep", record_rest)
    sinks = [
        LogSink(
            writer,
            store.runs,
            claim,
            array("I"),
            conversation=None,
            expires_at=lambda: None,
            webhook=lambda response: None,
            usage=lambda response: None,
            clock=lambda: 1_000.0,
        )
        for claim in claims
    ]
    for number, count in enumerate((1, 1, 20, 20), start=2):
        for sink in sinks[:count]:
            delta = OutputTextDelta(
                item_id="msg",
                output_index=0,
                content_index=0,
                delta="a",
                sequence_number=number,
            )
            sink.write((delta,))
        await writer.wait_until_idle()
    return rests


async def test_writer_rests_longer_the_more_runs_share_an_append(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests = await rests_of(store, monkeypatch, flush_s=LONG_S)
    assert [round(rest / LONG_S * 16) for rest in rests] == [0, 1, 1, 16]


async def test_writer_does_not_rest_after_a_slow_append(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await rests_of(store, monkeypatch, flush_s=SHORT_S) == [0, 0, 0, 0]
