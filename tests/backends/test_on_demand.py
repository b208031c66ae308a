"""Models that are loaded by their first request and unloaded when idle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from antiphon.backends.base import Backend, BackendCapabilities, Reply, Status
from antiphon.backends.lora import LoraBackend
from antiphon.backends.memory_budget import MemoryBudget
from antiphon.backends.on_demand import OnDemandBackend, OnDemandReply, ProgressCallback
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.errors import BackendError, InvalidRequest, Overloaded, SetupError
from antiphon.inference.conversation import Conversation, Options, ResumePoint
from antiphon.models import factories
from antiphon.models.catalog import load
from antiphon.stream.deltas import Finish, Text
from antiphon.testing.backend_check import CHECKS, Check
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.replies import batches_of, collect
from antiphon.wire.items import InputText, Message
from tests.conformance.server import Server, engine, local
from tests.conformance.test_hosted import MCP, Dice
from tests.conformance.test_tool_search import tool_call

STORY = "A boat left the harbour. It was never seen again. The sea was calm."
TALK = Conversation(items=(Message(role="user", content=(InputText(text="Hello!"),)),))
OPTIONS = Options()


def prepare(backend: Backend) -> Awaitable[Reply]:
    """Prepare the reply that waits for the load."""
    return backend.prepare(TALK, OPTIONS)


WAIT_S = 60


def ignored(stage: str, there: int, total: int | None) -> None:
    """Ignore the progress."""


class Maker:
    """Creates backends in turn. ``gate`` delays it; ``faults`` are raised first."""

    def __init__(self, *faults: Exception, tokens: bool = False) -> None:
        self.faults = list(faults)
        self.made: list[ScriptedBackend] = []
        self.tries = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._tokens = tokens

    async def __call__(self, progress: ProgressCallback) -> ScriptedBackend:
        self.tries += 1
        progress("weights", 50, 200)
        await self.gate.wait()
        if self.faults:
            raise self.faults.pop(0)
        backend = ScriptedBackend((STORY,), context_size=4096, tokens=self._tokens)
        backend.recommended_options = {"temperature": 0.3}
        self.made.append(backend)
        return backend


async def reply_text(reply: OnDemandReply) -> str:
    async with asyncio.timeout(WAIT_S):
        known = await collect(reply)
    assert isinstance(known[-1], Finish)
    return "".join(delta.text for delta in known if isinstance(delta, Text))


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_keeps_the_contract(check: Check) -> None:
    await check(OnDemandBackend("m", Maker()))


@pytest.mark.requirement("HF-3")
async def test_first_request_loads_the_model_once() -> None:
    make = Maker()
    lazy = OnDemandBackend("m", make, context_size=100)
    assert (lazy.status.value, lazy.context_size, lazy.recommended_options) == ("unloaded", 100, {})
    replies = await asyncio.gather(*(lazy.prepare(TALK, OPTIONS) for _ in range(5)))
    assert await asyncio.gather(*map(reply_text, replies)) == [STORY] * 5
    assert make.tries == 1
    assert (lazy.status, lazy.context_size) == (Status(value="loaded"), 4096)
    assert lazy.recommended_options == {"temperature": 0.3}


async def test_slow_load_continues_in_the_run() -> None:
    make = Maker()
    make.gate.clear()
    lazy = OnDemandBackend("m", make, ready_timeout_s=0)
    reply = await lazy.prepare(TALK, OPTIONS)
    assert (reply.input_tokens, reply.prompt_tokens, make.made) == (0, None, [])
    reading = asyncio.create_task(reply_text(reply))
    await asyncio.sleep(0)
    make.gate.set()
    assert await reading == STORY
    assert reply.input_tokens > 0 and make.tries == 1


async def test_cancelled_request_does_not_cancel_the_load() -> None:
    make = Maker()
    make.gate.clear()
    lazy = OnDemandBackend("m", make)
    leaving = asyncio.create_task(lazy.prepare(TALK, OPTIONS))
    staying = asyncio.create_task(lazy.prepare(TALK, OPTIONS))
    while not make.tries:
        await asyncio.sleep(0)
    leaving.cancel()
    make.gate.set()
    async with asyncio.timeout(WAIT_S):
        assert await reply_text(await staying) == STORY
    assert leaving.cancelled() and make.tries == 1


async def test_failed_load_hides_its_reason_and_is_retried() -> None:
    make = Maker(SetupError("/secret/path is missing"), ValueError("what"))
    lazy = OnDemandBackend("m", make)
    for _ in range(2):
        with pytest.raises(Overloaded, match="'m' could not be loaded") as refused:
            await lazy.prepare(TALK, OPTIONS)
        assert (refused.value.status, refused.value.code) == (503, "model_not_loaded")
        assert refused.value.retry_after_s > 0 and "secret" not in refused.value.message
    assert await reply_text(await lazy.prepare(TALK, OPTIONS)) == STORY
    assert make.tries == 3


async def test_failed_load_in_the_run_fails_the_run() -> None:
    make = Maker(SetupError("no"))
    make.gate.clear()
    reply = await OnDemandBackend("m", make, ready_timeout_s=0).prepare(TALK, OPTIONS)
    make.gate.set()
    with pytest.raises(BackendError, match="'m' could not be loaded") as failed:
        await reply_text(reply)
    assert failed.value.code == "model_not_loaded" and failed.value.is_transient
    assert "\n" not in failed.value.client_message


async def test_failed_load_is_an_http_503_with_a_code() -> None:
    server = Server(OnDemandBackend("m", Maker(SetupError("no"))), MemoryStore())
    answer = await server.post()
    await server.close()
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "model_not_loaded")
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    "turns",
    [["Just."], [tool_call("dice__roll", {"n": 1}), "It is six."]],
    ids=["answer", "tool"],
)
async def test_tokens_of_a_late_model_with_a_hosted_tool_are_known(turns: list[str]) -> None:
    """The run starts before the model is loaded, so its first prompt is known only later."""
    messages = []
    for is_late in (False, True):
        gate = asyncio.Event()

        async def make(progress: ProgressCallback, gate: asyncio.Event = gate) -> Backend:
            await gate.wait()
            return local(engine(turns))

        store = MemoryStore()
        lazy = OnDemandBackend("m", make, ready_timeout_s=0 if is_late else WAIT_S)
        server = Server(lazy, store, providers={"mcp": Dice()})
        if not is_late:
            gate.set()
        else:
            asyncio.get_running_loop().call_later(0.01, gate.set)
        response = (await server.post(tools=[MCP], enable_response_messages=True)).json()
        stored = await store.load("default", response["id"])
        assert stored is not None and stored.tokens is not None
        messages.append((response["input_messages"], response["output_messages"], stored.tokens))
        await server.close()
    assert messages[0] == messages[1]


@pytest.mark.requirement("HF-3")
async def test_load_progress_is_reported() -> None:
    make = Maker(SetupError("no"))
    make.gate.clear()
    lazy = OnDemandBackend("m", make, ready_timeout_s=0)
    reply = await lazy.prepare(TALK, OPTIONS)
    async with asyncio.timeout(WAIT_S):
        while not make.tries:
            await asyncio.sleep(0)
    assert lazy.status == Status(value="loading", stage="weights", bytes=50, total_bytes=200)
    make.gate.set()
    with pytest.raises(BackendError):
        await reply_text(reply)
    assert lazy.status == Status(value="failed")


async def test_invalid_request_is_rejected_or_fails_its_run() -> None:
    class Strict(ScriptedBackend):
        async def prepare(self, conversation: Conversation, options: Options) -> Any:
            raise InvalidRequest("too long", param="input")

    async def make(progress: ProgressCallback) -> ScriptedBackend:
        return Strict()

    with pytest.raises(InvalidRequest, match="too long"):
        await OnDemandBackend("m", make).prepare(TALK, OPTIONS)
    late = OnDemandReply(OnDemandBackend("m", make), prepare)
    with pytest.raises(BackendError, match="too long") as failed:
        await reply_text(late)
    assert failed.value.code == "invalid_prompt"


async def _until_unloaded(lazy: OnDemandBackend, created: ScriptedBackend) -> None:
    async with asyncio.timeout(WAIT_S):
        while not created.closed:
            await asyncio.sleep(0.005)
    assert lazy.status == Status(value="unloaded")


@pytest.mark.requirement("HF-3")
async def test_idle_model_is_unloaded_and_reloaded() -> None:
    make = Maker()
    lazy = OnDemandBackend("m", make, idle_s=0.01)
    early = await lazy.prepare(TALK, OPTIONS)
    await _until_unloaded(lazy, make.made[0])
    assert lazy.context_size == 4096
    assert await reply_text(early) == STORY, "what was prepared before is prepared again"
    assert make.tries == 2


async def test_model_in_use_is_not_idle() -> None:
    make = Maker()
    lazy = OnDemandBackend("m", make, idle_s=0.01)
    reply = await lazy.prepare(TALK, OPTIONS)
    async with asyncio.timeout(WAIT_S), aclosing(batches_of(reply)) as deltas:
        await anext(deltas)
        await asyncio.sleep(0.05)
        assert not make.made[0].closed
    await _until_unloaded(lazy, make.made[0])


@pytest.mark.parametrize("there", [True, False])
async def test_an_interrupted_reply_is_continued(there: bool) -> None:
    lazy = OnDemandBackend("m", Maker(tokens=True))
    reply = await lazy.prepare(TALK, OPTIONS) if there else OnDemandReply(lazy, prepare)
    rest = await reply_text(reply.resume(ResumePoint(prompt_ids=(), sampled_ids=(0, 1, 2))))
    assert STORY.endswith(rest) and 0 < len(rest) < len(STORY)


async def test_closed_backend_stays_closed() -> None:
    make = Maker()
    lazy = OnDemandBackend("m", make, idle_s=60)
    await lazy.load()
    await lazy.close()
    assert make.made[0].closed
    with pytest.raises(Overloaded):
        await lazy.prepare(TALK, OPTIONS)


async def test_closing_stops_a_load() -> None:
    make = Maker()
    make.gate.clear()
    lazy = OnDemandBackend("m", make)
    waiting = asyncio.create_task(lazy.load())
    while not make.tries:
        await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        await lazy.close()
        with pytest.raises(BackendError, match="closed"):
            await waiting
    assert make.made == []


# --- told to unload, and a shared budget ----------------------------------------------------------


async def test_unloading_waits_for_running_requests_and_later_ones_load_again() -> None:
    make = Maker()
    lazy = OnDemandBackend("m", make)
    reply = await lazy.prepare(TALK, OPTIONS)
    async with asyncio.timeout(WAIT_S), aclosing(batches_of(reply)) as deltas:
        await anext(deltas)
        unloading = asyncio.create_task(lazy.unload())
        await asyncio.sleep(0)
        later = asyncio.create_task(lazy.prepare(TALK, OPTIONS))
        for _ in range(10):
            await asyncio.sleep(0)
        assert (lazy.users, make.tries) == (2, 1), "the memory is still used"
        assert not unloading.done() and not make.made[0].closed
        rest = [delta async for several in deltas for delta in several]
        assert isinstance(rest[-1], Finish)
        await deltas.aclose()
        await unloading
        assert make.made[0].closed
        assert await reply_text(await later) == STORY
    assert make.tries == 2


async def test_unloading_cancels_a_download_and_fails_who_waits() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def fetch(progress: ProgressCallback) -> int:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    make = Maker()
    lazy = OnDemandBackend("m", make, fetch=fetch)
    waiting = asyncio.create_task(lazy.prepare(TALK, OPTIONS))
    async with asyncio.timeout(WAIT_S):
        await started.wait()
        await lazy.unload()
        with pytest.raises(Overloaded, match="'m' was unloaded before it was ready") as refused:
            await waiting
    assert (refused.value.status, refused.value.code) == (503, "model_not_loaded")
    assert cancelled.is_set() and make.tries == 0
    assert (lazy.status, lazy.users) == (Status(value="unloaded"), 0)


async def test_unloading_closes_an_engine_that_is_being_created() -> None:
    make = Maker()
    make.gate.clear()
    budget = MemoryBudget(100)
    lazy = OnDemandBackend("m", make, fetch=sized(60), budget=budget)
    waiting = asyncio.create_task(lazy.prepare(TALK, OPTIONS))
    async with asyncio.timeout(WAIT_S):
        while not make.tries:
            await asyncio.sleep(0)
        unloading = asyncio.create_task(lazy.unload())
        with pytest.raises(Overloaded):
            await waiting
        assert (lazy.status.value, budget.used_bytes) == ("unloaded", 60)
        make.gate.set()
        await unloading
    assert [backend.closed for backend in make.made] == [True]
    assert (lazy.status.value, budget.used_bytes) == ("unloaded", 0)
    assert await reply_text(await lazy.prepare(TALK, OPTIONS)) == STORY


def sized(size: int) -> Callable[[ProgressCallback], Awaitable[int]]:
    """A download that is there already, of a model that needs ``size`` bytes."""

    async def fetch(progress: ProgressCallback) -> int:
        return size

    return fetch


def sharing(limit: int, *sizes: int) -> tuple[list[OnDemandBackend], list[Maker]]:
    budget, makers = MemoryBudget(limit), [Maker() for _ in sizes]
    return [
        OnDemandBackend(f"m{number}", make, fetch=sized(size), budget=budget, ready_timeout_s=0.01)
        for number, (size, make) in enumerate(zip(sizes, makers, strict=True))
    ], makers


async def test_least_recently_used_model_makes_room() -> None:
    (one, two, three), makers = sharing(100, 40, 40, 50)
    for model in (one, two, one):
        await model.load()
    await three.load()
    assert [m.status.value for m in (one, two, three)] == ["loaded", "unloaded", "loaded"]
    assert [created.closed for make in makers for created in make.made] == [False, True, False]


async def test_model_is_never_unloaded_under_a_stream() -> None:
    (busy, idle, next_one), makers = sharing(100, 50, 50, 50)
    reply = await busy.prepare(TALK, OPTIONS)
    async with asyncio.timeout(WAIT_S), aclosing(batches_of(reply)) as deltas:
        await anext(deltas)
        await idle.load()
        await next_one.load()
        assert makers[1].made[0].closed and not makers[0].made[0].closed, "used before, but in use"


async def test_waiting_loads_and_new_requests_take_turns() -> None:
    """A model that always has a request cannot keep another one from being loaded."""
    (one, other), makers = sharing(100, 60, 60)
    first = await one.prepare(TALK, OPTIONS)
    async with asyncio.timeout(WAIT_S), aclosing(batches_of(first)) as deltas:
        await anext(deltas)
        theirs = asyncio.create_task(reply_text(OnDemandReply(other, prepare)))
        while one.status.value != "unloading":
            await asyncio.sleep(0)
        ours = asyncio.create_task(reply_text(OnDemandReply(one, prepare)))
        assert not makers[0].made[0].closed and not makers[1].made
        async for _ in deltas:
            pass
        await deltas.aclose()
        assert await asyncio.gather(theirs, ours) == [STORY, STORY]
    assert [make.tries for make in makers] == [2, 1]


async def test_cancelled_wait_for_memory_leaves_nothing() -> None:
    (one, other), makers = sharing(100, 60, 60)
    reply = await one.prepare(TALK, OPTIONS)
    async with asyncio.timeout(WAIT_S), aclosing(batches_of(reply)) as deltas:
        await anext(deltas)
        waiting = asyncio.create_task(other.load())
        while other.status.stage != "waiting for memory":
            await asyncio.sleep(0)
        await other.unload()
        with pytest.raises(BackendError):
            await waiting
    assert makers[1].tries == 0 and other.status.value == "unloaded"
    await one.load()
    assert one.status.value == "loaded"


async def test_model_larger_than_the_budget_says_so() -> None:
    (one,), _ = sharing(100 * 2**20, 300 * 2**20)
    with pytest.raises(SetupError, match=r"m0 needs about 300 MiB, more than model_memory_mb"):
        await one.load()
    assert one.status.value == "failed"


async def test_models_beyond_the_budget_wait_for_their_first_request_at_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = Maker()
    monkeypatch.setattr(factories, "ENGINES", {"scripted": lambda *given: make(given[-1])})
    models = {name: Model(source="x", engine="scripted", memory_mb=60) for name in "ab"}
    catalog = await load(Settings(models=models, model_memory_mb=100))
    states = [model.backend.status.value for model in catalog.all()]
    assert (states, make.tries) == (["loaded", "unloaded"], 1)
    await catalog.find("b").backend.ready()
    assert [model.backend.status.value for model in catalog.all()] == ["unloaded", "loaded"]
    await catalog.close()


# --- in the catalog and the server ----------------------------------------------------------------


async def test_catalog_loads_configured_models_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker()
    monkeypatch.setattr(
        factories, "ENGINES", {"scripted": lambda *given: make(given[-1] or ignored)}
    )
    models = {
        "now": Model(source="x", engine="scripted", idle_unload_s=60),
        "later": Model(source="x", engine="scripted", load="demand", top_p=0.5),
    }
    catalog = await load(Settings(models=models))
    assert make.tries == 1
    assert [model.name for model in catalog.all()] == ["now", "later"]
    later = catalog.find("later")
    assert later.defaults == {"top_p": 0.5}
    await later.backend.ready()
    assert (make.tries, later.defaults) == (2, {"temperature": 0.3, "top_p": 0.5})
    await catalog.close()
    assert all(backend.closed for backend in make.made)


@pytest.mark.requirement("HF-3")
async def test_a_stream_is_kept_alive_while_its_model_loads() -> None:
    make = Maker()
    make.gate.clear()
    server = Server(
        OnDemandBackend("tiny", make, ready_timeout_s=0), MemoryStore(), keepalive_s=0.005
    )
    asking = asyncio.create_task(server.post(stream=True))
    while not make.tries:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    make.gate.set()
    async with asyncio.timeout(WAIT_S):
        lines = (await asking).text.splitlines()
        listed = await server.get("models")
        await server.close()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    kinds = [event["type"] for event in events]
    assert "keepalive" in kinds and kinds[-1] == "response.completed"
    assert [model["id"] for model in listed.json()["data"]] == ["tiny", "gpt-5.5"]


async def test_delegates_completion_and_detokenization() -> None:
    class Able(ScriptedBackend):
        capabilities = BackendCapabilities(completes_text=True, detokenizes=True)

        async def complete(self, prompt: str | tuple[int, ...], options: Options) -> Any:
            requests.append((prompt, options.adapter))
            return await self.prepare(TALK, options)

        def detokenize(self, ids: Sequence[int]) -> str:
            return f"{len(ids)} tokens"

    async def able(progress: ProgressCallback) -> ScriptedBackend:
        return Able((STORY,))

    requests: list[Any] = []
    lazy = OnDemandBackend("m", able)
    for backend in (lazy, LoraBackend(lazy, "poet")):
        assert await reply_text(await backend.complete("Once", OPTIONS)) == STORY
        assert backend.detokenize((1, 2)) == "2 tokens"
    assert requests == [("Once", None), ("Once", "poet")]
    plain = OnDemandBackend("m", Maker())
    for unable in (
        plain,
        LoraBackend(plain, "poet"),
        LoraBackend(ScriptedBackend((STORY,)), "poet"),
    ):
        with pytest.raises(InvalidRequest):
            await unable.complete("Once", OPTIONS)
        with pytest.raises(BackendError, match="does not know the tokens"):
            unable.detokenize((1,))


async def test_recordings_for_an_unloaded_model_are_written_down_first() -> None:
    assert not OnDemandBackend("m", Maker()).capabilities.hears


@pytest.mark.parametrize("ready_timeout_s", [0, 5])
async def test_unsupported_completion_is_rejected_or_fails(ready_timeout_s: float) -> None:
    async def ask(backend: Backend) -> httpx.Response:
        async def make(progress: ProgressCallback) -> Backend:
            return backend

        server = Server(
            OnDemandBackend("tiny", make, ready_timeout_s=ready_timeout_s),
            MemoryStore(),
            reraise=True,
        )
        reply = await server.post(enable_response_messages=True)
        await server.close()
        return reply

    outcome = (await ask(local(engine(["Hello"])))).json()
    assert outcome["output_messages"][0]["message"].startswith("Hello")
    refused = await ask(ScriptedBackend((STORY,)))
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "unsupported_parameter")
    assert error["param"] == "enable_response_messages"
