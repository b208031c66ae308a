"""``POST /v1/chat/completions``, ``/v1/completions``, ``/v1/messages``: runs for clients of other
APIs.

The endpoints use the same admission, disconnect detection, metrics and errors as ``/v1/responses``.
One request may start several runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from starlette.types import Receive, Scope, Send

from antiphon.compat.error_paths import ErrorPaths
from antiphon.errors import RequestError, RunError
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.json_response import json_reply
from antiphon.http.metrics import RunTiming
from antiphon.http.middleware.errors import failed_response_reply
from antiphon.http.middleware.request_context import RequestContext, request_context
from antiphon.http.openapi.operation import Operation
from antiphon.http.requests import body as bodies
from antiphon.http.streaming import sse
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.http.streaming.response import EventStream
from antiphon.runs.execution.run import EventSink
from antiphon.wire.events import Event
from antiphon.wire.parsing.json_body import BodyLimits
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import InputTokensDetails, Response, Usage

from .responses import ignored_tools_headers, record_outcome

if TYPE_CHECKING:
    from antiphon.runs.execution.run import Run

__all__ = ["ChoiceStream", "CompletionsEndpoint", "CompletionsRequest"]


class ChoiceStream(Protocol):
    """Encodes the events of one choice (one of several answers to a request) for a stream."""

    def frames(self, events: tuple[Event, ...]) -> bytes: ...
    def usage_frame(self, responses: Sequence[Response]) -> bytes: ...


class CompletionsRequest(Protocol):
    """A parsed request body. ``requests`` contains one request for each choice (one of several
    answers). ``answer`` and ``choice_stream`` build the response."""

    @property
    def requests(self) -> tuple[CreateResponse, ...]: ...
    @property
    def paths(self) -> ErrorPaths: ...
    @property
    def stream(self) -> bool: ...
    def with_trace(self, headers: Mapping[str, str]) -> Self: ...
    def answer(self, responses: Sequence[Response]) -> Any: ...
    def choice_stream(self, first: Response, index: int) -> ChoiceStream: ...


_RequestT = TypeVar("_RequestT", bound=CompletionsRequest)


class CompletionsEndpoint(Generic[_RequestT]):
    """An endpoint of an API other than the Responses API, such as Chat Completions, as an ASGI app.

    - ``read`` parses a body.
    - ``start_run`` creates the run of one choice (one of several answers). Its arguments are the
      context, the request and the index of the choice.
    - ``operation`` describes the endpoint in the OpenAPI document.
    - ``end_mark``: the bytes that end a stream.
    - ``comment``: the bytes that keep an idle stream open.
    """

    def __init__(
        self,
        read: Callable[[bytes, BodyLimits], _RequestT],
        start_run: Callable[[RequestContext, _RequestT, int], Awaitable[Run]],
        deps: EndpointDependencies,
        operation: Operation,
        *,
        end_mark: bytes = sse.DONE,
        comment: bytes = sse.COMMENT,
    ) -> None:
        self.operation = operation
        self._end_mark = end_mark
        self._comment = comment
        self._read = read
        self._start_run = start_run
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = request_context(scope)
        body = await bodies.read(scope, receive, self._deps.limits.max_body_bytes)
        request = self._read(body, self._deps.limits.body)
        if context.span.headers:
            request = request.with_trace(context.span.headers)
        stream = EventStream(scope, send)
        async with CancelOnDisconnect(scope, receive), self._deps.slot(context):
            runs = await self._runs(context, request)
            context.model, context.response_id = runs[0].response.model, runs[0].id
            try:
                if request.stream:
                    await self._stream_runs(context, request, runs, stream)
                else:
                    await _run_all(self._drive(context, run, _no_sink) for run in runs)
            except RunError as error:
                request.paths.translate(error)
                raise
        context.usage = _total_usage(runs)
        if request.stream:
            return await stream.end(mark=self._end_mark)
        responses = [run.response for run in runs]
        failed = next((each for each in responses if each.status == "failed"), None)
        reply = (
            json_reply(request.answer(responses))
            if failed is None
            else failed_response_reply(failed)
        )
        reply.raw_headers.extend(ignored_tools_headers(runs[0].ignored_tools))
        await reply(scope, receive, send)

    async def _runs(self, context: RequestContext, request: _RequestT) -> list[Run]:
        """Create the runs of all choices. If one run is refused, the whole request is refused. This
        is possible because no byte of the response has been sent yet."""
        try:
            return [
                await self._start_run(context, request, at) for at in range(len(request.requests))
            ]
        except RequestError as error:
            request.paths.translate(error)
            raise

    async def _stream_runs(
        self, context: RequestContext, request: _RequestT, runs: Sequence[Run], stream: EventStream
    ) -> None:
        choices = [request.choice_stream(runs[0].response, at) for at in range(len(runs))]
        headers = ignored_tools_headers(runs[0].ignored_tools)
        await _run_all(
            self._drive(context, run, partial(_ChoiceSink, choice, stream, headers, self._comment))
            for run, choice in zip(runs, choices, strict=True)
        )
        responses = [run.response for run in runs]
        ended = all(response.status != "failed" for response in responses)
        if ended and (last := choices[0].usage_frame(responses)):
            if (rest := stream.write(last)) is not None:
                await rest

    async def _drive(
        self, context: RequestContext, run: Run, make_sink: Callable[[RunTiming], EventSink | None]
    ) -> None:
        timing = RunTiming(context.started, self._deps.clock)
        try:
            await run.drive(make_sink(timing))
        finally:
            record_outcome(context, timing, run, self._deps.metrics, self._deps.clock())


def _total_usage(runs: Iterable[Run]) -> Usage:
    """Return the sum of the usage of all runs. The prompt counts once for each run, because each
    run reads the prompt."""
    used = [run.response.usage for run in runs if run.response.usage is not None]
    cached = sum(one.input_tokens_details.cached_tokens for one in used)
    return Usage(
        input_tokens=sum(one.input_tokens for one in used),
        input_tokens_details=InputTokensDetails(cached_tokens=cached),
        output_tokens=sum(one.output_tokens for one in used),
        total_tokens=sum(one.total_tokens for one in used),
    )


def _no_sink(timing: RunTiming) -> None:
    """Return no event sink: a response that is not streamed needs none."""


async def _run_all(drives: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run each coroutine in a task. If one task fails, cancel the other tasks."""
    tasks = [asyncio.create_task(drive) for drive in drives]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class _ChoiceSink(EventSink):
    """Writes the events of a run as chunks of one choice.

    The first chunk of any choice starts the HTTP response.
    """

    def __init__(
        self,
        choice: ChoiceStream,
        stream: EventStream,
        headers: Sequence[tuple[bytes, bytes]],
        comment: bytes,
        timing: RunTiming,
    ) -> None:
        self._choice = choice
        self._stream = stream
        self._headers = headers
        self._comment = comment
        self._timing = timing

    @property
    def has_sent(self) -> bool:  # type: ignore[override]
        return self._stream.has_started

    def write(self, events: tuple[Event, ...]) -> Awaitable[None] | None:
        if self._timing.first_token_at is None:
            self._timing.record_events(events)
        body = self._choice.frames(events)
        if not self._stream.has_started:
            return self._start_stream(body)
        return self._stream.write(body) if body else None

    def write_comment(self) -> Awaitable[None] | None:
        return self._stream.write(self._comment) if self.has_sent else None

    async def _start_stream(self, body: bytes) -> None:
        await self._stream.start(self._headers)
        if body and (rest := self._stream.write(body)) is not None:
            await rest
