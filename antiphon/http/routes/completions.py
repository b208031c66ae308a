"""``POST /v1/chat/completions`` and ``/v1/completions``: runs for clients of an older API.

Uses the same admission, disconnect detection, metrics and errors as ``responses``. One request may
start several runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from antiphon.compat.error_paths import ErrorPaths
from antiphon.errors import RequestError, RunError
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.json_response import json_reply
from antiphon.http.metrics import RunTiming
from antiphon.http.middleware.errors import failed_response_reply
from antiphon.http.middleware.request_context import RequestContext, request_context
from antiphon.http.requests import body as bodies
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.http.streaming.response import Stream
from antiphon.runs.execution.run import EventSink
from antiphon.wire.events import Event
from antiphon.wire.parsing.json_body import Limits as BodyLimits
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import InputTokensDetails, Response, Usage

from .responses import record_outcome

if TYPE_CHECKING:
    from antiphon.runs.execution.run import Run

__all__ = ["Asked", "CompletionsEndpoint", "Frames"]


class Frames(Protocol):
    """The stream of one choice, made of events."""

    def frames(self, events: tuple[Event, ...]) -> bytes: ...
    def usage_frame(self, responses: Sequence[Response]) -> bytes: ...


class Asked(Protocol):
    """What was read from a body: a request for each choice, and how they are answered."""

    @property
    def requests(self) -> tuple[CreateResponse, ...]: ...
    @property
    def paths(self) -> ErrorPaths: ...
    @property
    def stream(self) -> bool: ...
    def answer(self, responses: Sequence[Response]) -> Any: ...
    def choice_stream(self, first: Response, index: int) -> Frames: ...


_A = TypeVar("_A", bound=Asked)


class CompletionsEndpoint(Generic[_A]):
    """The endpoint, as an ASGI app. ``begin`` makes the run of a choice: of a tenant, of what was
    asked, by its index."""

    def __init__(
        self,
        read: Callable[[bytes, BodyLimits], _A],
        begin: Callable[[str, _A, int], Awaitable[Run]],
        deps: EndpointDependencies,
    ) -> None:
        self._read = read
        self._begin = begin
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = request_context(scope)
        body = await bodies.read(scope, receive, self._deps.limits.max_body_bytes)
        asked = self._read(body, self._deps.limits.body)
        stream = Stream(scope, send)
        async with CancelOnDisconnect(scope, receive), self._deps.admission.slot(context.tenant):
            runs = await self._runs(context.tenant, asked)
            context.model, context.response_id = runs[0].response.model, runs[0].id
            try:
                if asked.stream:
                    await self._tell(context, asked, runs, stream)
                else:
                    await _together(self._driven(context, run, _unheard) for run in runs)
            except RunError as error:
                asked.paths.translate(error)
                raise
        context.usage = _total(runs)
        if asked.stream:
            return await stream.end()
        responses = [run.response for run in runs]
        failed = next((each for each in responses if each.status == "failed"), None)
        reply = (
            json_reply(asked.answer(responses)) if failed is None else failed_response_reply(failed)
        )
        await reply(scope, receive, send)

    async def _runs(self, tenant: str, asked: _A) -> list[Run]:
        """All of them, before the first byte: what is refused is refused as a whole."""
        try:
            return [await self._begin(tenant, asked, at) for at in range(len(asked.requests))]
        except RequestError as error:
            asked.paths.translate(error)
            raise

    async def _tell(
        self, context: RequestContext, asked: _A, runs: Sequence[Run], stream: Stream
    ) -> None:
        chunks = [asked.choice_stream(runs[0].response, at) for at in range(len(runs))]
        await _together(
            self._driven(context, run, partial(_Told, frames, stream))
            for run, frames in zip(runs, chunks, strict=True)
        )
        responses = [run.response for run in runs]
        ended = all(response.status != "failed" for response in responses)
        if ended and (last := chunks[0].usage_frame(responses)):
            if (rest := stream.write(last)) is not None:
                await rest

    async def _driven(
        self, context: RequestContext, run: Run, outlet: Callable[[RunTiming], EventSink | None]
    ) -> None:
        observed = RunTiming(context.started, self._deps.clock)
        try:
            await run.drive(outlet(observed))
        finally:
            record_outcome(context, observed, run, self._deps.metrics, self._deps.clock())


def _total(runs: Iterable[Run]) -> Usage:
    """What they used, all in all: each has read the prompt."""
    used = [run.response.usage for run in runs if run.response.usage is not None]
    cached = sum(one.input_tokens_details.cached_tokens for one in used)
    return Usage(
        input_tokens=sum(one.input_tokens for one in used),
        input_tokens_details=InputTokensDetails(cached_tokens=cached),
        output_tokens=sum(one.output_tokens for one in used),
        total_tokens=sum(one.total_tokens for one in used),
    )


def _unheard(observed: RunTiming) -> None:
    """Nobody hears the events of an answer that is not streamed."""


async def _together(drives: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Each in a task of its own; when one breaks off, so do the others."""
    tasks = [asyncio.create_task(drive) for drive in drives]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class _Told(EventSink):
    """A run on its way to the reader, in the words of another API. The answer of several runs
    begins with what comes first."""

    def __init__(self, frames: Frames, stream: Stream, observed: RunTiming) -> None:
        self._frames = frames
        self._stream = stream
        self._observed = observed

    @property
    def has_sent(self) -> bool:  # type: ignore[override]
        return self._stream.begun

    def write(self, events: tuple[Event, ...]) -> Awaitable[None] | None:
        if self._observed.first is None:
            self._observed.record_events(events)
        body = self._frames.frames(events)
        if not self._stream.begun:
            return self._begin(body)
        return self._stream.write(body) if body else None

    async def _begin(self, body: bytes) -> None:
        await self._stream.begin()
        if body and (rest := self._stream.write(body)) is not None:
            await rest
