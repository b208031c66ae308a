"""A complete server in the process: real app, service, dialect and store, and a scripted model.

``MODES`` are the ways to send a request. A conformance test with the fixture ``ask`` runs in two of
them, or in all with ``--every-mode``.
"""

from __future__ import annotations

import io
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import httpx
from msgspec import Struct

from antiphon.attachments.fetch import Fetcher
from antiphon.backends.base import Backend
from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.blobs.base import Blobs
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.http.app import create_app
from antiphon.http.metrics import Metrics
from antiphon.http.streaming import sse
from antiphon.inference.tokens import ModelCard, Tokenizer
from antiphon.limits.key_ring import KeyRing
from antiphon.models.catalog import Catalog, ServedModel
from antiphon.resources.prompts import Prompts
from antiphon.runs.dependencies import OptionalFeatures, RunDependencies
from antiphon.runs.policy import Policy
from antiphon.runs.service import Service
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store.base import Store
from antiphon.store.upkeep.store_observer import observe_store
from antiphon.support.logs import open_log
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.tools.base import AnyToolProvider
from antiphon.tools.containers.registry import ContainerRegistry
from antiphon.tracing.base import Tracer
from antiphon.webhooks.deliver import WebhookSender
from tests.conformance import oracle
from tests.conformance.asgi_clients import WebSocketClient
from tests.golden.models import MODELS
from tests.harness import asgi_client

Json = dict[str, Any]
NOW = 1_700_000_000


class Answer(Struct, frozen=True, kw_only=True):
    """The outcome of one request.

    ``response`` is the terminal response, None after an HTTP error. ``error`` is the error of the
    HTTP answer or of the response. ``events`` is empty without streaming.
    """

    http: int
    headers: Mapping[str, str]
    response: Json | None = None
    error: Json | None = None
    events: Sequence[Json] = ()

    @property
    def terminal_response(self) -> Json:
        """The terminal response. Fails the test if there is none."""
        assert self.response is not None, self.error
        return self.response

    @property
    def rejection(self) -> Json:
        """The HTTP error of a request that was rejected before a run."""
        assert self.response is None and self.error is not None, self.response
        return {"http": self.http, **self.error}

    @property
    def output(self) -> list[Json]:
        items: list[Json] = self.terminal_response["output"]
        return items

    @property
    def text(self) -> str:
        """The joined text of the output."""
        parts = [part for item in self.output for part in item.get("content") or ()]
        return "".join(part["text"] for part in parts if part["type"] == "output_text")


class Server:
    """One model called ``tiny`` behind the real app, and a client for it."""

    def __init__(
        self,
        backend: Backend,
        store: Store,
        *,
        seal: Encryptor | None = None,
        prompts: Prompts | None = None,
        thinking_budgets: Mapping[str, int] = {},
        instructions: str | None = None,
        providers: Mapping[str, AnyToolProvider] = {},
        containers: ContainerRegistry | None = None,
        blobs: Blobs | None = None,
        fetcher: Fetcher | None = None,
        webhook_sender: WebhookSender | None = None,
        tracer: Tracer | None = None,
        metrics: Metrics | None = None,
        **policy: Any,
    ) -> None:
        numbers = itertools.count(1)
        store = store if metrics is None else observe_store(store, metrics, time.monotonic)
        metrics = metrics or Metrics()
        self.backend = backend
        self.store = store
        self.log = io.StringIO()
        #: Unix time of the server's clock, in seconds.
        self.now = NOW

        def ids(prefix: str) -> str:
            return f"{prefix}_{next(numbers)}"

        model = ServedModel(
            name="tiny",
            aliases=("gpt-5.5",),
            backend=backend,
            created=NOW,
            thinking_budgets=thinking_budgets,
            instructions=instructions,
        )
        #: The API keys with which runs end, if an app uses this ring.
        self.keys = KeyRing()
        self.dependencies = RunDependencies(
            keys=self.keys,
            models=Catalog((model,)),
            store=store,
            clock=lambda: self.now,
            ids=ids,
            policy=Policy(**{"keepalive_s": 0, **policy}),
            seal=seal or Encryptor((EncryptionKey.generate(),)),
            tracer=tracer or Tracer(),
            on_tool_call=metrics.record_tool_call,
            on_background_end=metrics.record_background,
        )
        self.service = Service(
            self.dependencies,
            OptionalFeatures(
                prompts=prompts or Prompts(),
                providers=providers,
                containers=containers,
                blobs=blobs,
                fetcher=fetcher,
                webhook_sender=webhook_sender,
            ),
        )
        self.service.start()
        log = open_log(self.log, level="debug")
        self.app = create_app(self.service, ids=ids, log=log, tracer=tracer, metrics=metrics)
        self.client = asgi_client(self.app)

    async def post(self, **body: Any) -> httpx.Response:
        """``POST /v1/responses``, with a default model and input."""
        return await self.client.post(
            "/v1/responses", json={"model": "tiny", "input": "hi", **body}
        )

    async def get(self, path: str, **query: Any) -> httpx.Response:
        """``GET /v1/…``"""
        return await self.client.get(f"/v1/{path}", params=query)

    async def close(self) -> None:
        await self.service.drain(0)
        await self.client.aclose()
        await self.store.close()


#: Sends a request to a server: ``await ask(server, input=…)``.
Ask = Callable[..., Awaitable[Answer]]


async def _send_plain(server: Server, body: Json) -> Answer:
    reply = await server.post(**body)
    assert reply.headers["content-type"] == "application/json"
    if reply.status_code != 200:
        return _rejection(reply)
    return Answer(http=200, headers=reply.headers, response=oracle.plain(reply.content))


async def _send_streamed(server: Server, body: Json) -> Answer:
    reply = await server.post(**body, stream=True)
    if reply.status_code != 200:
        assert reply.headers["content-type"] == "application/json"
        return _rejection(reply)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = oracle.stream(reply.content)
    response = events[-1]["response"]
    return Answer(
        http=200,
        headers=reply.headers,
        response=response,
        error=response["error"],
        events=events,
    )


async def _send_background(server: Server, body: Json) -> Answer:
    """Start a background response, follow it to its end, retrieve it."""
    queued = await server.post(**body, background=True)
    if queued.status_code != 200:
        return _rejection(queued)
    assert queued.json()["status"] == "queued" and queued.json()["output"] == []
    return await _retrieve(server, queued.json()["id"], queued.headers)


async def _send_background_stream(server: Server, body: Json) -> Answer:
    """Read the stream of a background run from its first event."""
    reply = await server.post(**body, background=True, stream=True)
    if reply.status_code != 200:
        return _rejection(reply)
    return _read_stream(reply, reply.headers)


async def _send_resumed(server: Server, body: Json) -> Answer:
    """Leave a background stream in the middle and resume it."""
    queued = await server.post(**body, background=True, stream=True)
    if queued.status_code != 200:
        return _rejection(queued)
    events = oracle.stream(queued.content)
    path = f"responses/{events[0]['response']['id']}"
    after = len(events) // 2
    rest = await server.get(path, stream=True, starting_after=after)
    whole = await server.get(path, stream=True)
    assert whole.content == queued.content
    frames = queued.content.split(b"\n\n")
    assert rest.content.split(b"\n\n") == frames[after + 1 :]
    return await _retrieve(server, events[0]["response"]["id"], queued.headers)


async def _send_websocket(server: Server, body: Json) -> Answer:
    """Send the request over a WebSocket, with all checks of streams."""
    async with WebSocketClient(server.app) as wire:
        wire.create(**body)
        events = await wire.events()
    first = events[0]
    if first["type"] == "error":
        return Answer(http=first["status"], headers={}, error=oracle.error_frame(first))
    lines = [json.dumps(event, ensure_ascii=False).encode() for event in events]
    frames = [
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), line)
        for event, line in zip(events, lines, strict=True)
    ]
    socket_events = oracle.stream(b"".join((*frames, sse.DONE)))
    response = socket_events[-1]["response"]
    return Answer(
        http=200, headers={}, response=response, error=response["error"], events=socket_events
    )


async def _retrieve(server: Server, response_id: str, headers: Mapping[str, str]) -> Answer:
    answer = _read_stream(await server.get(f"responses/{response_id}", stream=True), headers)
    retrieved = oracle.plain((await server.get(f"responses/{response_id}")).content)
    assert retrieved == answer.response
    return answer


def _read_stream(reply: httpx.Response, headers: Mapping[str, str]) -> Answer:
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = oracle.stream(reply.content)
    response = events[-1]["response"]
    return Answer(
        http=200, headers=headers, response=response, error=response["error"], events=events
    )


def _rejection(reply: httpx.Response) -> Answer:
    return Answer(http=reply.status_code, headers=reply.headers, error=oracle.error(reply))


MODES: Mapping[str, Callable[[Server, Json], Awaitable[Answer]]] = {
    "plain": _send_plain,
    "stream": _send_streamed,
    "background": _send_background,
    "background stream": _send_background_stream,
    "resumed": _send_resumed,
    "websocket": _send_websocket,
}


#: The modes of a client that waits for its answer.
FOREGROUND = ("plain", "stream")


async def send_in_mode(mode: str, server: Server, body: Json) -> Answer:
    """Send a request in one mode. Checks that the stored response is the same, or is not stored."""
    answer = await MODES[mode](server, body)
    if answer.response is not None:
        stored = await server.get(f"responses/{answer.response['id']}")
        if answer.response["store"] or answer.response["background"]:
            assert stored.json() == answer.response
        else:
            assert stored.status_code == 404
    return answer


# --- models --------------------------------------------------------------------------------------


def engine(
    replies: Sequence[Any] | Callable[[str], Any],
    model: str = "qwen",
    chunk: int = 1,
    wait_s: float = 0,
) -> ScriptedEngine:
    """Return an engine that plays ``replies``, with the chat template of a model family."""
    _, special, *_ = MODELS[model]
    return ScriptedEngine(replies, special=special, card=_card(model), chunk=chunk, wait_s=wait_s)


def local(scripted: ScriptedEngine, model: str = "qwen") -> LocalBackend:
    """Return the backend over such an engine. Its dialect uses the engine's tokenizer."""
    if scripted.card == _card(model) and type(scripted.tokenizer) is ByteTokenizer:
        return LocalBackend(scripted, _dialect(model, tuple(scripted.tokenizer.special)))
    return LocalBackend(scripted, _new_dialect(scripted.card, scripted.tokenizer, model))


def scripted_engine_of(server: Server) -> ScriptedEngine:
    """Return the engine of a server over ``local``."""
    assert isinstance(server.backend, LocalBackend)
    engine = server.backend.engine
    assert isinstance(engine, ScriptedEngine)
    return engine


def _card(model: str) -> ModelCard:
    template, *_ = MODELS[model]
    return ModelCard(name="tiny", context_size=4096, chat_template=template, fingerprint="bytes")


@cache
def _dialect(model: str, special: tuple[str, ...]) -> ChatDialect:
    """Return the dialect of a model, which is created once: that takes most of a test's time."""
    return _new_dialect(_card(model), ByteTokenizer(special), model)


def _new_dialect(card: ModelCard, tokenizer: Tokenizer, model: str) -> ChatDialect:
    _, _, reasoning, tools = MODELS[model]
    return ChatDialect(card, tokenizer, reasoning_format=reasoning, tool_format=tools)


def backend_of(script: Any) -> Backend:
    """Return a backend for a script: a backend, an engine, or replies to play."""
    if isinstance(script, ScriptedEngine):
        return local(script)
    if isinstance(script, str):
        return ScriptedBackend((script,))
    if isinstance(script, Iterable) or callable(script):
        return ScriptedBackend(script if callable(script) else list(script))
    backend: Backend = script
    return backend
