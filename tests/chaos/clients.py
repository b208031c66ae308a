"""Clients over HTTP that check what they get: events, snapshots and ends of responses."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from random import Random
from typing import Any

import httpx
import msgspec

from antiphon.stream.event_grammar import check
from antiphon.stream.fold import fold
from antiphon.wire.events import EVENTS

ENDED = ("completed", "incomplete", "failed", "cancelled")
_decode = msgspec.json.Decoder(reduce(or_, EVENTS.values())).decode
_RETRY_S = 0.3
#: Seconds after which servers have noticed that the database works again.
_RECOVERY_S = 35.0
#: Seconds in which a background response has to end although servers die.
_PATIENCE_S = 240.0


class Violation(AssertionError):
    """An invariant does not hold."""


class Clients:
    """Clients of several servers. ``urls`` returns the base URLs of the servers, dead ones
    included. ``texts``: the whole answer of each model; None for a model that always answers, but
    nobody knows what. ``database_ok_since``: when the database
    last became available, in seconds of ``time.monotonic``. ``fields``: of each request, besides
    the model and the input."""

    def __init__(
        self,
        urls: Callable[[], Sequence[str]],
        texts: Mapping[str, str | None],
        random: Random,
        database_ok_since: Callable[[], float] = time.monotonic,
        fields: Mapping[str, Any] = {},
    ) -> None:
        self._fields = fields
        self._database_ok_since = database_ok_since
        self._urls = urls
        self._texts = texts
        self._random = random
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(20.0, read=30.0), limits=httpx.Limits(max_connections=None)
        )
        self.counts = Counter[str]()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def _url(self) -> str:
        return self._random.choice(self._urls())

    async def background(self) -> None:
        """Create a background response, follow it through all faults, and check it."""
        model = self._random.choice(list(self._texts))
        body = {"model": model, "input": "go on", "background": True, **self._fields}
        created = await self._request("POST", "/responses", json=body, once=True)
        if created is None or created.status_code >= 400:
            self.counts["not created"] += 1
            return
        response_id = str(created.json()["id"])
        cancels = self._random.random() < 0.1
        events: list[dict[str, Any]] = []
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                await self._follow(response_id, events)
                if cancels:
                    await self._request("POST", f"/responses/{response_id}/cancel")
                response = await self._retrieve(response_id)
                if response["status"] in ENDED:
                    break
                await asyncio.sleep(_RETRY_S)
        while not _is_whole(events, response):
            before = len(events)
            if await self._follow(response_id, events) and len(events) == before:
                break
        self._check(model, response, events, cancelled=cancels)

    async def _follow(self, response_id: str, events: list[dict[str, Any]]) -> bool:
        """Read events after the last event that was read. Returns whether the stream came to its
        end."""
        query: dict[str, Any] = {"stream": "true"}
        if events:
            query["starting_after"] = events[-1]["sequence_number"]
        path = f"{self._url()}/responses/{response_id}"
        leaves_s = self._random.choice((0.5, 2.0, 60.0))
        try:
            async with (
                asyncio.timeout(leaves_s),
                self._http.stream("GET", path, params=query) as answer,
            ):
                if answer.status_code != 200:
                    await self._check_status(answer)
                    await asyncio.sleep(_RETRY_S)
                    return False
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        event = json.loads(line[6:])
                        if event["type"] != "keepalive":
                            events.append(event)
                return True
        except (httpx.HTTPError, TimeoutError):
            self.counts["resumed"] += 1
            await asyncio.sleep(_RETRY_S / 3)
            return False

    async def _retrieve(self, response_id: str) -> dict[str, Any]:
        answer = await self._request("GET", f"/responses/{response_id}")
        assert answer is not None
        if answer.status_code != 200:
            raise Violation(f"GET {response_id}: {answer.status_code} {answer.text}")
        found: dict[str, Any] = answer.json()
        return found

    async def _request(
        self, method: str, path: str, *, once: bool = False, **fields: Any
    ) -> httpx.Response | None:
        """Send a request. After an outage, send it again, except if ``once`` is True."""
        while True:
            started = time.monotonic()
            try:
                answer = await self._http.request(method, self._url() + path, **fields)
                if answer.status_code < 500 and answer.status_code != 429:
                    return answer
                await self._check_status(answer)
                self._check_refusal(answer, started)
            except httpx.HTTPError:
                self.counts["connections lost"] += 1
            if once:
                return None
            await asyncio.sleep(_RETRY_S)

    async def _check_status(self, answer: httpx.Response) -> None:
        """Count an answer with an error status. Raises ``Violation`` for 500: whatever breaks
        around a server, it must not answer with an internal error."""
        self.counts[f"status {answer.status_code}"] += 1
        if answer.status_code == 500:
            text = (await answer.aread()).decode()
            raise Violation(f"{answer.request.url}: 500 {text}")

    def _check_refusal(self, answer: httpx.Response, started: float) -> None:
        """Servers may fail only while the database does, or shortly after."""
        if answer.status_code >= 500 and self._database_ok_since() < started - _RECOVERY_S:
            raise Violation(
                f"{answer.request.url}: {answer.status_code} {answer.text}, though the database"
                " works"
            )

    async def foreground(self) -> None:
        """Stream a response and check its events; then retrieve it."""
        model = self._random.choice(list(self._texts))
        body = {"model": model, "input": "go on", "stream": True, **self._fields}
        events: list[dict[str, Any]] = []
        try:
            async with self._http.stream("POST", f"{self._url()}/responses", json=body) as answer:
                if answer.status_code != 200:
                    await self._check_status(answer)
                    return
                events += [
                    json.loads(line[6:])
                    async for line in answer.aiter_lines()
                    if line.startswith("data: {")
                ]
        except httpx.HTTPError:
            self.counts["foreground lost"] += 1
            return
        response = events[-1].get("response") if events else None
        if response is None or response["status"] not in ENDED:
            self.counts["foreground truncated"] += 1
            return
        stored = response
        if response["status"] in ("completed", "incomplete"):
            stored = await self._retrieve(response["id"])
        if stored != response:
            raise Violation(f"GET {stored} is not the end of the stream {response}")
        self._check(model, response, events, numbered=False)

    def _check(
        self,
        model: str,
        response: dict[str, Any],
        events: list[dict[str, Any]],
        *,
        cancelled: bool = False,
        numbered: bool = True,
    ) -> None:
        """Check a response that has ended, and all its events."""
        name, status = response["id"], response["status"]
        self.counts[status] += 1
        numbers = [event["sequence_number"] for event in events]
        if numbered and numbers != list(range(len(numbers))):
            raise Violation(f"{name} has the events {numbers}")
        decoded = [_decode(json.dumps(event).encode()) for event in events]
        check(decoded)
        output = json.loads(msgspec.json.encode(fold(decoded).output))
        if output != response["output"]:
            raise Violation(f"{name}: GET {response['output']} is not the fold {output}")
        written = [item for item in response["output"] if item["type"] == "message"]
        texts = ["".join(part["text"] for part in item["content"]) for item in written]
        # After an interruption, a model whose token ids are not known writes a new answer.
        if any(item["status"] != "incomplete" for item in written[:-1]):
            raise Violation(f"{name} has several answers: {texts}")
        text = texts[-1] if texts else ""
        whole = self._texts[model]
        if whole is None:
            if status == "failed":
                raise Violation(f"{name} failed: {response['error']}")
        elif not all(map(whole.startswith, texts)) or (status == "completed" and text != whole):
            raise Violation(f"{name} ({status}) says {texts}")
        if status == "cancelled" and not cancelled:
            raise Violation(f"{name} was cancelled by nobody")


def _is_whole(events: list[dict[str, Any]], response: dict[str, Any]) -> bool:
    return bool(events) and events[-1]["type"] == f"response.{response['status']}"
