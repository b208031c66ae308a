"""A fake upstream: it plays scripted answers, one per request, repeats the last, and records its
requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec import Struct, field


class Answer(Struct):
    """``pieces`` go out one by one; an ``asyncio.Event`` among them is waited for. ``cut``: the
    connection breaks behind them; ``hang``: nothing more comes until the client has gone.
    ``held``: what is waited for before the head; ``raw``: all that is sent, head and all, before
    the connection is closed."""

    pieces: Sequence[bytes | asyncio.Event] = ()
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({"content-type": "text/event-stream"})
    cut: bool = False
    hang: bool = False
    held: asyncio.Event | None = None
    raw: bytes | None = None


def sse(*payloads: Any, done: bool = True) -> list[bytes]:
    """Payloads as events, one piece each."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in payloads]
    return [f"data: {text}\n\n".encode() for text in (*texts, *(["[DONE]"] if done else []))]


def chunks(*deltas: Mapping[str, Any], reason: str | None = "stop", **more: Any) -> list[bytes]:
    """A Chat Completions stream."""
    messages = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **more}
    return sse(*messages, last)


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Answer([body], status=status, headers={"content-type": "application/json", **headers})


class Fake(Struct):
    """``routes``: path → answers. ``asked``: path, body and headers of each request;
    ``queries``: the queries of the requests; ``left``: how many clients went before the
    end; ``ports``: where they came from."""

    routes: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[tuple[str, Any, Mapping[str, str]]] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    left: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    ports: set[int] = field(default_factory=set)
    url: str = ""

    @property
    def bodies(self) -> list[Any]:
        """The bodies of POST requests."""
        return [body for _, body, _ in self.asked if body is not None]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.queries.append(dict(request.query))
        self.asked.append((request.path, body, request.headers))
        assert request.transport is not None
        self.ports.add(request.transport.get_extra_info("peername")[1])
        answers = self.routes.get(request.path)
        if not answers:
            return web.json_response({"detail": "Not Found"}, status=404)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer.raw is not None:
            request.transport.write(answer.raw)
            request.transport.close()
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        try:
            if answer.held is not None:
                await answer.held.wait()
            await response.prepare(request)
            for piece in answer.pieces:
                if isinstance(piece, asyncio.Event):
                    await piece.wait()
                else:
                    await response.write(piece)
                    for _ in range(3):  # the client reads this piece before the next is written
                        await asyncio.sleep(0)
            if answer.hang:
                await asyncio.Event().wait()
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            self.gone.set()
            raise
        if answer.cut:
            request.transport.abort()
        return response


@asynccontextmanager
async def fake(**routes: Sequence[Answer] | Answer) -> AsyncIterator[Fake]:
    """A fake upstream. ``__`` in a route's name stands for a slash: ``v1__models=…``."""
    playing = Fake(
        {
            "/" + path.replace("__", "/"): [answers] if isinstance(answers, Answer) else [*answers]
            for path, answers in routes.items()
        }
    )
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", playing.answer)
    async with TestServer(app, host="127.0.0.1", handler_cancellation=True) as server:
        playing.url = f"http://127.0.0.1:{server.port}"
        yield playing
