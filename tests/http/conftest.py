"""A fake service that plays scripts, and the app over it."""

from __future__ import annotations

import asyncio
import inspect
import io
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, cast
from unittest.mock import AsyncMock

import httpx
import pytest

from antiphon.backends.base import Status
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import InvalidRequest, NotFound
from antiphon.http.app import create_app
from antiphon.http.openapi.document import make_document
from antiphon.limits.key_ring import KeyRing
from antiphon.resources.admin.audit import AuditTrail
from antiphon.resources.admin.tenant_deletions import TenantDeletions
from antiphon.resources.batches import Batches
from antiphon.resources.conversations import Conversations
from antiphon.resources.file_storage.files import Files
from antiphon.resources.prompts import Prompts
from antiphon.resources.skills import Skills
from antiphon.runs.batches.worker import BatchWorker
from antiphon.runs.execution.run import EventSink
from antiphon.runs.execution.supervisor import AccessWatch
from antiphon.store.rates import RateStore
from antiphon.store.upkeep.health import StoreHealth
from antiphon.stream.writer import ResponseWriter
from antiphon.support.logs import open_log
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.memory_store.values import MemoryValues
from antiphon.wire.cursors import PageParams
from antiphon.wire.events import Event
from antiphon.wire.items import Item, Message
from antiphon.wire.pagination import Page
from antiphon.wire.request_shapes import RequestShapes
from antiphon.wire.response import Response, ResponseError, Usage
from tests.harness import asgi_client
from tests.stalls import without_stalls

USAGE = Usage(input_tokens=7, output_tokens=3, total_tokens=10)


def counted() -> Callable[[str], str]:
    numbers = itertools.count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


class FakeRun:
    """A run that emits ``words``, waits for ``step`` before each, and ends as configured."""

    def __init__(
        self,
        id: str,
        words: tuple[str, ...],
        *,
        step: asyncio.Semaphore | None = None,
        error: ResponseError | None = None,
        breaks: bool = False,
        ignored_tools: tuple[str, ...] = (),
    ) -> None:
        self.id = id
        self.event_count = self.input_tokens = 0
        self.left = asyncio.Event()
        self.ignored_tools = ignored_tools
        self._words = words
        self._step = step
        self._error = error
        self._breaks = breaks
        self._writer = ResponseWriter(
            Response(id=id, created_at=1, model="tiny"), ids=lambda prefix: f"{prefix}_{id}"
        )
        self.response = self._writer.response

    async def drive(self, sink: EventSink | None = None) -> Response:
        try:
            async for batch in self._batches():
                self.event_count += len(batch)
                if sink is not None and (rest := sink.write(batch)) is not None:
                    await rest
        finally:
            self.left.set()
        return self.response

    async def _batches(self) -> AsyncGenerator[tuple[Event, ...], None]:
        writer = self._writer
        writer.create()
        writer.start()
        yield writer.take()
        item = None
        for word in self._words:
            if self._step is not None:
                await self._step.acquire()
            item = item or writer.open(Message(role="assistant", content=()))
            item.write(word)
            yield writer.take()
        if self._breaks:
            raise RuntimeError("a bug with CANARY in it")
        status = "failed" if self._error else "completed"
        self.response = writer.finalize(status, at=2, usage=USAGE, error=self._error)
        writer.emit_terminal()
        yield writer.take()


class FakeBackend(ScriptedBackend):
    """The backend of a model whose state tests may set."""

    status = Status(value="loaded")  # type: ignore[assignment]


class FakeModel:
    def __init__(self, name: str, aliases: tuple[str, ...], context_size: int | None) -> None:
        self.name = name
        self.aliases = aliases
        self.created = 1700000000
        self.backend = FakeBackend(context_size=context_size)


class Unused:
    """A part of the service that handlers get and no test of this folder uses."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"FakeService.{self._name} is used: {name}")


class FakeService:
    """Records its calls. ``script`` shapes the runs; ``refusal`` is raised instead."""

    def __init__(self) -> None:
        self.is_ready = True
        self.request_watch = AccessWatch()
        self.store_health = StoreHealth(MemoryStore())
        self.keepalive_s = 0.0
        self.words: tuple[str, ...] = ("Hel", "lo")
        self.script: dict[str, Any] = {}
        self.refusal: Exception | None = None
        self.runs: list[FakeRun] = []
        self.calls: list[tuple[Any, ...]] = []
        self.drained: list[float] = []
        self.created = asyncio.Event()
        self.shapes = RequestShapes()
        self.prompts = Prompts()
        self.files = Files(MemoryStore(), clock=lambda: 1000.0, ids=counted())
        self.skills = Skills(MemoryStore(), clock=lambda: 1000.0, ids=counted())
        self.rates = MemoryStore().rates
        self.audit = AuditTrail(MemoryStore().audit, clock=lambda: 1000.0, ids=counted())
        self.conversations = Conversations(MemoryStore(), clock=lambda: 1000.0, ids=counted())
        self.tenant_deletions = TenantDeletions(
            MemoryStore().values, clock=lambda: 1000.0, timer=lambda: 0.0
        )
        self.batches = Batches(
            MemoryStore().values, self.files, clock=lambda: 1000.0, ids=counted()
        )
        self.batch_worker = BatchWorker(
            self.batches,
            self.files,
            KeyRing(),
            cast(Any, Unused("line_runs")),
            owner="fake",
            lease_s=5,
            lines_at_a_time=1,
            clock=lambda: 1000.0,
            on_ended=AsyncMock(),
        )

    def __getattr__(self, name: str) -> Unused:
        return Unused(name)

    def models(self) -> tuple[FakeModel, ...]:
        return (
            FakeModel("org/tiny", ("gpt-5.5", "small"), 4096),
            FakeModel("upstream", (), None),
        )

    async def create(
        self,
        tenant: str,
        request: Any,
        *,
        client: Any = None,
        counts_prompt: bool = True,
        id_prefix: str = "resp",
    ) -> FakeRun:
        self._record("create", tenant, request)
        run = FakeRun(f"resp_{len(self.runs) + 1}", self.words, **self.script)
        self.runs.append(run)
        self.created.set()
        return run

    async def count(self, tenant: str, request: Any, *, client: Any = None) -> int:
        self._record("count", tenant, request)
        return 42

    async def retrieve(self, tenant: str, response_id: str) -> Response:
        self._record("retrieve", tenant, response_id)
        if response_id != "resp_known":
            raise NotFound(f"Response with id '{response_id}' not found.", param="response_id")
        return Response(id=response_id, created_at=1, model="tiny", status="completed")

    async def check_followable(self, tenant: str, response_id: str) -> None:
        await self.retrieve(tenant, response_id)
        raise InvalidRequest("Not a background response.", param="stream")

    async def delete(self, tenant: str, response_id: str) -> None:
        await self.retrieve(tenant, response_id)

    async def cancel(self, tenant: str, response_id: str) -> Response:
        return await self.retrieve(tenant, response_id)

    async def input_items(self, tenant: str, response_id: str, params: PageParams) -> Page[Item]:
        self._record("input_items", tenant, response_id, params)
        return Page(data=(), first_id=None, last_id=None, has_more=False)

    async def drain(self, grace_s: float) -> None:
        self.drained.append(grace_s)

    def _record(self, *call: Any) -> None:
        self.calls.append(call)
        if self.refusal is not None:
            raise self.refusal


class AppUnderTest:
    """The app over a fake service, a client for it, and its log."""

    def __init__(self, service: FakeService, **options: Any) -> None:
        self.service = service
        self.log = io.StringIO()
        self.now = 1000.0
        options.setdefault("ids", counted())
        options.setdefault("log", open_log(self.log, level="debug"))
        options.setdefault("clock", lambda: self.now)
        service.rates = RateStore(MemoryValues(lambda: None), lambda: self.now)
        self.app = create_app(service, **options)  # type: ignore[arg-type]
        self.client = asgi_client(self.app)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


@pytest.fixture(scope="session")
def routes() -> list[Any]:
    """The routes of an app that manages models."""
    app: Any = AppUnderTest(FakeService(), manager=object()).app
    while not hasattr(app, "routes"):
        app = getattr(app, "_app", None) or app.app
    found: list[Any] = app.routes
    return found


@pytest.fixture(scope="session")
def document(routes: list[Any]) -> Any:
    """The OpenAPI document of these routes, built once because this takes most of a second. Tests
    do not change it."""
    return json.loads(json.dumps(make_document(routes)))


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
async def make_app(
    request: pytest.FixtureRequest, service: FakeService
) -> AsyncIterator[Callable[..., AppUnderTest]]:
    created: list[AppUnderTest] = []

    def make(**options: Any) -> AppUnderTest:
        created.append(AppUnderTest(service, **options))
        return created[-1]

    async with AsyncExitStack() as stack:
        if inspect.iscoroutinefunction(request.function):
            await stack.enter_async_context(without_stalls())
        yield make
    for each in created:
        await each.client.aclose()


@pytest.fixture
def error_of() -> Callable[[httpx.Response], dict[str, Any]]:
    """Return the error of a response, after a check that it has OpenAI's shape."""

    def read(answer: httpx.Response) -> dict[str, Any]:
        body = answer.json()
        assert list(body) == ["error"]
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-request-id"]
        return dict(body["error"])

    return read
