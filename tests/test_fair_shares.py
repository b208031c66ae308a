"""The fairness matrix: one tenant floods a part of the server, another tenant uses the same part or
another one. The second tenant waits for one turn at most.

The parts are held by gates, not by time: a test opens one and looks who is served. A part is each
piece of the server with a queue or with threads. Engines have tests of their own.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from antiphon.attachments import documents as documents_module
from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Fetcher, FetchResult
from antiphon.audio import decoding
from antiphon.audio.base import SpeechTask
from antiphon.audio.decoding import AudioDecoder
from antiphon.audio.program import ProgramOptions, ProgramSpeaker
from antiphon.backends.validation import schema_validator
from antiphon.backends.validation.grammar_matcher import GrammarCache
from antiphon.backends.validation.schema_validator import SchemaValidator
from antiphon.bootstrap.policy import request_limits
from antiphon.config.keys import ApiKey
from antiphon.config.settings import Settings
from antiphon.embeddings.thread_worker import Piece, ThreadedEmbedder
from antiphon.engines.base import Sampling
from antiphon.engines.common.grammar_state import GrammarTracker
from antiphon.engines.common.matched_generation import MatchedGeneration
from antiphon.engines.llama.slots import Slots
from antiphon.engines.llama.state_owners import StateOwner
from antiphon.errors import ToolError
from antiphon.http.middleware.request_context import RequestContext
from antiphon.http.requests import body as bodies
from antiphon.inference.tokens import Prompt
from antiphon.limits.admission import AdmissionQueue
from antiphon.limits.requests import RequestLimits
from antiphon.resources.vector_search.indexer import Indexer
from antiphon.sandbox.javascript import JavaScript, ProgramState
from antiphon.store.sqlite.database import Database
from antiphon.store.vectors import IndexingTask
from antiphon.support.fair_limiter import FairLimiter, tenant_share
from antiphon.support.fair_threads import FairThreads, current_tenant
from antiphon.testing.engine import ScriptedEngine
from antiphon.tools.image_generation.provider import ImageGenerationProvider, ImagePolicy
from antiphon.tools.web_search.browser import SearchOptions
from antiphon.tools.web_search.ddgs import Ddgs
from antiphon.tracing.base import Span

FLOOD = 12
DIGEST = "0" * 64
WAIT_S = 60
THREADS, THREADS_PER_TENANT = 4, 3
#: Turns of a long generation.
LONG = 5

#: Uses a part once, for a tenant. The number makes each use different, so that no cache answers.
Use: TypeAlias = Callable[[str, int], Awaitable[Any]]


class Gate:
    """Records who enters. Holds the flood until it is opened, once per entry."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self._opened = threading.Semaphore(0)

    async def enter(self, tenant: str) -> None:
        self.entered.append(tenant)
        while tenant == "flood" and not self._opened.acquire(blocking=False):
            await asyncio.sleep(0.001)

    def enter_on_thread(self, tenant: str) -> None:
        self.entered.append(tenant)
        if tenant == "flood":
            self._opened.acquire()

    def open(self, count: int = 1) -> None:
        self._opened.release(count)


@asynccontextmanager
async def document_parsing(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    class GatedReader:
        async def read(self, content: bytes, kind: str, **limits: object) -> bytes:
            await gate.enter(content.split()[1].decode())
            return b'{"text": "x"}'

    patch.setattr(documents_module, "find_spec", lambda name: name)
    # Digests of small documents need no thread here, so that the victim queues at once.
    patch.setattr(documents_module, "asyncio", SimpleNamespace(to_thread=at_once))
    documents = Documents(GatedReader())  # type: ignore[arg-type]

    async def use(tenant: str, number: int) -> None:
        await documents.text(f"%PDF- {tenant} {number}".encode(), tenant=tenant)

    yield use


async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@asynccontextmanager
async def fetching(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    class GatedFetcher(Fetcher):
        async def _fetch(self, url: str) -> FetchResult:
            await gate.enter(url.split("/")[-1])
            return FetchResult(b"", "", "")

    fetcher = GatedFetcher(lambda: None, 1, lambda: 0.0)

    async def use(tenant: str, number: int) -> None:
        await fetcher.fetch(f"http://site.example/{number}/{tenant}", tenant=tenant)

    yield use


@asynccontextmanager
async def programs(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    pytest.importorskip("wasmtime")

    class GatedJavaScript(JavaScript):
        def _run(self, engine: Any, arguments: str, abandoned: Any) -> ProgramState:
            gate.enter_on_thread("victim" if "victim" in arguments else "flood")
            return ProgramState()

    javascript = GatedJavaScript(max_concurrent=2)

    async def use(tenant: str, number: int) -> None:
        await javascript.advance(tenant, (), tenant=tenant)

    yield use
    javascript.close()


@asynccontextmanager
async def embedding(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    def compute(texts: Any, role: Any) -> Any:
        gate.enter_on_thread(texts[0])
        return [[1.0] for _ in texts], 1

    embedder = ThreadedEmbedder(
        compute, lambda: None, dimensions=1, split=lambda text, role, limit: [Piece(text, 1)]
    )

    async def use(tenant: str, number: int) -> None:
        await embedder.embed([tenant], tenant=tenant)

    yield use
    await embedder.close()


@asynccontextmanager
async def threads(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    """Tokenization, schemas, images, vector search: whatever runs in ``asyncio.to_thread``."""

    async def use(tenant: str, number: int) -> None:
        await asyncio.to_thread(gate.enter_on_thread, tenant)

    yield use


@asynccontextmanager
async def costly_grammars(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    engine = ScriptedEngine()
    tracker = GrammarTracker(engine.tokenizer)

    class GatedGrammar:
        def __init__(self, tenant: str) -> None:
            self._tenant = tenant

        def match(self, ids: tuple[int, ...], reason: str | None) -> tuple[int, bool]:
            gate.enter_on_thread(self._tenant)
            return len(ids), False

        def check_budget(self) -> None: ...

    async def use(tenant: str, number: int) -> None:
        sampling = Sampling(max_tokens=1, tenant=tenant)
        grammar: Any = GatedGrammar(tenant)
        matched = MatchedGeneration(engine, grammar, Prompt((1,)), sampling, tracker.turns)
        async for _ in matched.chunks():
            pass

    yield use


@asynccontextmanager
async def validation(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    async def run(**request: object) -> Any:
        await gate.enter(current_tenant.get())
        return SimpleNamespace(fault=None, schema=None, error=None)

    patch.setattr(schema_validator, "_run_worker", run)
    validator = SchemaValidator({}, "text.format", GrammarCache().turns)

    async def use(tenant: str, number: int) -> None:
        await validator.check()

    yield use


@asynccontextmanager
async def indexing(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    done = dict[tuple[str, str], asyncio.Event]()

    class GatedVectors:
        async def get_file(self, tenant: str, store_id: str, file_id: str) -> None:
            await gate.enter(tenant)
            done[tenant, file_id].set()

    unused: Any = None
    indexer = Indexer(GatedVectors(), unused, unused, unused, None)  # type: ignore[arg-type]

    async def use(tenant: str, number: int) -> None:
        ended = done[tenant, str(number)] = asyncio.Event()
        indexer.add([IndexingTask(tenant=tenant, store_id="vs", file_id=str(number))])
        await ended.wait()

    yield use
    await indexer.stop()


@asynccontextmanager
async def store_reads(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    with tempfile.TemporaryDirectory() as folder:
        database = await Database.open(Path(folder, "store.db"))

        async def use(tenant: str, number: int) -> None:
            await database.read(lambda connection: gate.enter_on_thread(tenant))

        yield use
        await database.close()


@asynccontextmanager
async def store_writes(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    patch.setattr("antiphon.store.sqlite.database._SLICE_S", 0.0)  # all of these writes are long
    with tempfile.TemporaryDirectory() as folder:
        database = await Database.open(Path(folder, "store.db"))

        async def use(tenant: str, number: int) -> None:
            await database.write(lambda connection: gate.enter_on_thread(tenant))

        yield use
        await database.close()


@asynccontextmanager
async def image_generation(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    class GatedGenerator:
        async def generate(self, task: Any) -> AsyncIterator[Any]:
            await gate.enter(current_tenant.get())
            return
            yield

    unused: Any = None
    generator: Any = GatedGenerator()
    provider = ImageGenerationProvider(
        generator, unused, ImagePolicy(max_pixels=1, max_bytes=1, concurrency=2)
    )

    async def use(tenant: str, number: int) -> None:
        with suppress(ToolError):  # there is no image
            async for _ in provider.generate(unused, tenant):
                pass

    yield use


@asynccontextmanager
async def audio_decoding(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    async def run(worker: object, *arguments: str, content: bytes) -> bytes:
        await gate.enter(content.decode())
        return bytes(100)

    patch.setattr(decoding, "run_worker", run)
    decoder = AudioDecoder(60)

    async def use(tenant: str, number: int) -> None:
        await decoder.decode(tenant.encode(), tenant=tenant)

    yield use


@asynccontextmanager
async def web_searches(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    async def run(request: bytes) -> bytes:
        await gate.enter(current_tenant.get())
        return b"{}"

    search = Ddgs(run)

    async def use(tenant: str, number: int) -> None:
        await search.search("a", SearchOptions(tenant=tenant))

    yield use


@asynccontextmanager
async def speech(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    async def start(*command: str, **options: object) -> None:
        await gate.enter(current_tenant.get())
        raise OSError

    patch.setattr(asyncio, "create_subprocess_exec", start)
    speaker = ProgramSpeaker(("speak",), ProgramOptions(parallel=2))

    async def use(tenant: str, number: int) -> None:
        with suppress(OSError):
            async for _ in speaker.speak(SpeechTask(text="x", voice="alloy"), tenant=tenant):
                pass

    yield use


@asynccontextmanager
async def costly_bodies(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    def parse(body: bytes, limits: object) -> None:
        gate.enter_on_thread(current_tenant.get())

    async def use(tenant: str, number: int) -> None:
        await bodies.parsed(bytes(1_000_000), RequestLimits(), parse)

    yield use


@asynccontextmanager
async def large_bodies(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    size = 2**20
    memory = FairLimiter(4 * size, max_per_tenant=3 * size)
    headers = [(b"content-length", str(size).encode())]

    async def use(tenant: str, number: int) -> None:
        async def receive() -> dict[str, Any]:
            await gate.enter(tenant)
            return {"type": "http.request"}

        context = RequestContext("req", 0.0, Span({}))
        context.tenant, context.memory = tenant, memory
        try:
            await bodies.read({"headers": headers, "antiphon.context": context}, receive, size)
        finally:
            context.keep_memory(0)

    yield use


@asynccontextmanager
async def generations(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    """Long ones, of which the gate holds each turn; see ``LONG``."""
    slots = Slots(2)

    async def use(tenant: str, number: int) -> None:
        owner = StateOwner(tenant=tenant)
        slot = await slots.acquire((number,), owner=owner)
        for _ in range(LONG if tenant == "flood" else 1):
            await gate.enter(tenant)
            if slots.gives_way(slot, 1, 100):
                slots.release(slot, (number,))
                slot = await slots.acquire((number,), owner=owner, is_paused=True)
        slots.release(slot, (number,))

    yield use


@asynccontextmanager
async def requests(gate: Gate, patch: pytest.MonkeyPatch) -> AsyncIterator[Use]:
    """Responses, chats, messages, embeddings, rerankings, moderations, images and audio, all of
    which wait for a slot."""
    admission = AdmissionQueue(4, 100, max_per_tenant=3)

    async def use(tenant: str, number: int) -> None:
        async with admission.slot(tenant):
            await gate.enter(tenant)

    yield use


Part: TypeAlias = Callable[[Gate, pytest.MonkeyPatch], AbstractAsyncContextManager[Use]]
#: Part → how many uses of one tenant run at a time.
PARTS: Mapping[Part, int] = {
    document_parsing: 2,
    fetching: 8,
    programs: 2,
    embedding: 1,
    threads: THREADS_PER_TENANT,
    costly_grammars: 1,
    validation: 2,
    indexing: 2,
    store_reads: 1,
    store_writes: 1,
    image_generation: 2,
    audio_decoding: 2,
    speech: 2,
    web_searches: 4,
    costly_bodies: THREADS_PER_TENANT,
    large_bodies: 3,
    generations: 2,
    requests: 3,
}


#: Part → turns after which a victim is served, if more than one. A text is split in a turn, and one
#: more read waits at the thread. A write comes after the next one of the tenant that came first.
TURNS: Mapping[Part, int] = {embedding: 2, store_reads: 2, store_writes: 2}


async def settle(reached: Callable[[], bool]) -> None:
    """Let other tasks and threads run until the condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not reached():
            await asyncio.sleep(0.0005)


@pytest.mark.parametrize("victim", PARTS, ids=lambda part: part.__name__)
@pytest.mark.parametrize("flooded", PARTS, ids=lambda part: part.__name__)
async def test_flood_delays_others_by_one_turn(
    flooded: Part, victim: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.get_running_loop().set_default_executor(
        FairThreads(THREADS, "test", max_per_tenant=THREADS_PER_TENANT)
    )
    gate, slots = Gate(), PARTS[flooded]

    async def run(use: Use, tenant: str, number: int) -> None:
        current_tenant.set(tenant)
        await use(tenant, number)

    async with flooded(gate, monkeypatch) as flood, asyncio.TaskGroup() as tasks:
        for number in range(FLOOD):
            tasks.create_task(run(flood, "flood", number))
        await settle(lambda: len(gate.entered) == slots)
        try:
            if victim is not flooded:
                async with victim(gate, monkeypatch) as use, asyncio.timeout(WAIT_S):
                    await run(use, "victim", FLOOD)
                assert gate.entered == [*["flood"] * slots, "victim"]
                return
            served = tasks.create_task(run(flood, "victim", FLOOD))
            for _ in range(TURNS.get(victim, 1)):
                before = len(gate.entered)
                for _ in range(20):  # the victim queues
                    await asyncio.sleep(0)
                gate.open()
                await settle(lambda before=before: len(gate.entered) > before)
            await settle(served.done)
        finally:
            gate.open(FLOOD * LONG)


@pytest.mark.parametrize(
    ("tenants", "share", "limit"),
    [
        ((), 0.75, None),
        (("a", "a"), 0.75, None),
        (("a", "b"), 0.75, 75),
        (("a", "b"), 1.0, 100),
    ],
    ids=["no keys", "one tenant", "two tenants", "no share"],
)
def test_share_holds_where_there_are_several_tenants(
    tenants: tuple[str, ...], share: float, limit: int | None
) -> None:
    keys = tuple(ApiKey(tenant=tenant, sha256=DIGEST) for tenant in tenants)
    settings = Settings(keys=keys, max_concurrent_requests=100, max_tenant_share=share)
    limits = request_limits(settings)
    assert limits.max_requests_per_tenant == limit
    total, part = limits.body_memory_bytes, limits.body_memory_per_tenant
    assert part == (None if limit is None else tenant_share(total, share))
    assert total >= 4 * settings.max_body_bytes
