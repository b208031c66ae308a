"""``POST /v1/chat/completions``: a run whose client speaks the older API.

The same rim as ``responses``: gate, presence, metrics, errors. It knows neither models nor what a
message is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from starlette.types import Receive, Scope, Send

from antiphon.compat.chat_answer import chat_completion
from antiphon.compat.chat_request import Chat, chat_request
from antiphon.compat.chat_stream import Chunks
from antiphon.errors import RequestError
from antiphon.runs.run import Outlet
from antiphon.wire.events import Event

from . import bodies, sse
from .errors import failure_reply
from .exchange import ClientLeft, exchange_of
from .gate import Gate
from .guard import Limits
from .metrics import Metrics, Observed
from .presence import Presence
from .replies import json_reply
from .responses import account

if TYPE_CHECKING:
    from antiphon.runs.run import Run
    from antiphon.runs.service import Service

__all__ = ["ChatCompletions", "Frames", "Stream"]


class ChatCompletions:
    """The endpoint, as an ASGI app."""

    def __init__(
        self,
        service: Service,
        gate: Gate,
        metrics: Metrics,
        clock: Callable[[], float],
        limits: Limits,
    ) -> None:
        self._service = service
        self._gate = gate
        self._metrics = metrics
        self._clock = clock
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        body = await bodies.read(scope, receive, self._limits.max_body_bytes)
        asked = chat_request(body, self._limits.body)
        observed = Observed(exchange.started, self._clock)
        async with Presence(receive), self._gate.slot(exchange.tenant):
            run = await self._run(exchange.tenant, asked)
            exchange.model, exchange.response_id = run.response.model, run.id
            try:
                if asked.request.stream:
                    chunks = Chunks(
                        run.response, include_usage=asked.include_usage, legacy=asked.legacy
                    )
                    await asyncio.create_task(run.drive(Stream(chunks, send, observed)))
                else:
                    await run.drive()
            finally:
                account(exchange, observed, run.response, self._metrics, self._clock())
        if asked.request.stream:
            return await send({"type": "http.response.body", "body": sse.DONE})
        response = run.response
        failed = response.status == "failed"
        reply = (
            failure_reply(response)
            if failed
            else json_reply(chat_completion(response, legacy=asked.legacy))
        )
        await reply(scope, receive, send)

    async def _run(self, tenant: str, asked: Chat) -> Run:
        try:
            return await self._service.create(tenant, asked.request)
        except RequestError as error:
            asked.paths.name(error)
            raise


class Frames(Protocol):
    """What makes bytes of a stream out of events."""

    def frames(self, events: tuple[Event, ...]) -> bytes: ...


class Stream(Outlet):
    """A run on its way to the reader who drives it, in the words of another API."""

    def __init__(self, frames: Frames, send: Send, observed: Observed) -> None:
        self._frames = frames
        self._send = send
        self._observed = observed
        self._begun = False

    async def write(self, events: tuple[Event, ...]) -> None:
        self._observed.saw(events)
        body = self._frames.frames(events)
        try:
            if not self._begun:
                self._begun = True
                headers = [*sse.HEADERS]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            if body:
                await self._send({"type": "http.response.body", "body": body, "more_body": True})
        except OSError:
            raise ClientLeft from None
