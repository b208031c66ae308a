"""Streams of background runs: how they begin and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from antiphon.errors import ServerStopped, StoreError
from antiphon.http.routes.responses import StoredEventStream
from antiphon.http.streaming.sse import DONE

LINE = b'{"type":"response.in_progress","sequence_number":%d}'


class ScriptedLog:
    """A service whose event log is scripted: lines, events to wait for, an error to raise."""

    keepalive_s = 0.001
    keepalive_events = True

    def __init__(self, *steps: Any) -> None:
        self._steps = steps
        self.event_logs = self

    async def follow(
        self, tenant: str, response_id: str, after: int
    ) -> AsyncGenerator[list[bytes], None]:
        for step in self._steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                yield [step]


class Client:
    """Receives a response; sets ``quiet`` once a keepalive has come."""

    def __init__(self) -> None:
        self.body = b""
        self.keepalive = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: Any) -> None:
        self.body += message.get("body", b"")
        if b"keepalive" in self.body:
            self.keepalive.set()

    async def read(self, served: Any, after: int) -> Client:
        scope = {"type": "http", "method": "GET"}
        async with asyncio.timeout(60):
            await StoredEventStream(served, "t", "resp_1", after)(scope, self.receive, self.send)
        return self


@pytest.mark.requirement("API-KEEPALIVE-FIRST")
@pytest.mark.parametrize("after", [-1, 4])
async def test_stream_never_begins_with_a_keepalive_event(after: int) -> None:
    client = Client()
    await client.read(ScriptedLog(client.keepalive, LINE % (after + 1)), after)
    comment, first, *_ = client.body.split(b"\n\n")
    while first == comment:
        _, _, client.body = client.body.partition(b"\n\n")
        comment, first, *_ = client.body.split(b"\n\n")
    assert comment.startswith(b": ") and first.startswith(b"event: response.in_progress\n")


async def test_idle_stream_gets_keepalive_events_after_its_first_event() -> None:
    client = Client()
    await client.read(ScriptedLog(LINE % 5, client.keepalive), 4)
    assert b'data: {"type":"keepalive","sequence_number":5}' in client.body


@pytest.mark.requirement("API-CANCELLED-END")
async def test_only_a_complete_stream_ends_with_done() -> None:
    ended = await Client().read(ScriptedLog(LINE % 0), -1)
    assert ended.body.endswith(DONE)
    truncated = Client()
    with pytest.raises(StoreError):
        await truncated.read(ScriptedLog(LINE % 0, StoreError("The store does not answer.")), -1)
    assert LINE % 0 in truncated.body and DONE not in truncated.body


@pytest.mark.parametrize(
    ("after", "advice"), [(-1, b"starting_after=0."), (4, b"starting_after=5.")]
)
async def test_reader_learns_that_the_server_stops(after: int, advice: bytes) -> None:
    client = Client()
    with pytest.raises(ServerStopped):
        await client.read(ScriptedLog(LINE % (after + 1), ServerStopped("stopped")), after)
    *_, last, rest = client.body.split(b"\n\n")
    assert (
        last.startswith(b": ") and last.endswith(b"starting_after=%d." % (after + 1)) and not rest
    )
