"""Background runs: claiming, following, cancelling, interruption and continuation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Union

import msgspec
import pytest

from antiphon.backends.base import Backend, DeltaSink, Reply
from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.errors import BackendError, InvalidRequest, NotFound, StoreError
from antiphon.inference.conversation import Conversation, Options, ResumePoint
from antiphon.runs.background.worker import BackgroundWorker, LeaseConfig
from antiphon.runs.service import Service
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store.base import Store
from antiphon.store.records import ClaimQuery
from antiphon.stream.deltas import Close, Delta, Open, Text
from antiphon.stream.event_grammar import check
from antiphon.stream.fold import fold
from antiphon.support.push import send
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.replies import batches_of, push_all
from antiphon.tools.base import CallContext, ResponseContext, ToolProgress, ToolResult, Toolset
from antiphon.wire.events import EVENTS, Event
from antiphon.wire.items import (
    FunctionCall,
    FunctionCallOutput,
    McpCall,
    McpListTools,
    Message,
    Reasoning,
)
from antiphon.wire.parsing.requests import parse_create_response
from antiphon.wire.response import Response
from antiphon.wire.tools import Mcp
from tests.conformance.scripts import message_deltas, reasoning_deltas
from tests.conformance.server import engine, local
from tests.conformance.test_hosted import Dice
from tests.conformance.test_tool_search import tool_call
from tests.runs.execution.test_run import Gated
from tests.runs.scripted_service import NOW, make_service

_decode = msgspec.json.Decoder(Union[tuple(EVENTS.values())]).decode  # noqa: UP007


def decode_event(event: dict[str, Any]) -> Event:
    return _decode(json.dumps(event).encode())


TEXT = " ".join(f"word{n}" for n in range(40))
LEASE = LeaseConfig(lease_s=0.2, flush_s=0.001)


@asynccontextmanager
async def serving(backend: Backend, store: Store, **policy: Any) -> AsyncIterator[Service]:
    service = make_service(backend, store, **{"lease": LEASE, **policy})
    service.start()
    try:
        yield service
    finally:
        await service.drain(0)


async def enqueue(service: Service, tenant: str = "t", **fields: Any) -> Response:
    body = {"model": "scripted", "input": "hi", "background": True, **fields}
    return (
        await service.enqueue(tenant, parse_create_response(json.dumps(body).encode()))
    ).response


async def followed(service: Service, response_id: str, after: int = -1) -> list[dict[str, Any]]:
    async with (
        asyncio.timeout(60),
        aclosing(service.event_logs.follow("t", response_id, after)) as batches,
    ):
        return [json.loads(line) async for lines in batches for line in lines]


async def until(
    service: Service, response_id: str, condition: Callable[[Response], bool]
) -> Response:
    """Return the response as soon as it meets the condition, which is checked at each event."""
    async with asyncio.timeout(60):
        async with aclosing(service.event_logs.follow("t", response_id)) as batches:
            async for _ in batches:
                response = await service.retrieve("t", response_id)
                if condition(response):
                    return response
        return await service.retrieve("t", response_id)


async def test_enqueued_run_is_completed_later(store: Store) -> None:
    async with serving(ScriptedBackend([TEXT]), store) as service:
        queued = await enqueue(service)
        assert (queued.status, queued.output, queued.background) == ("queued", (), True)
        events = await followed(service, queued.id)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [event["type"] for event in events[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        ended = await service.retrieve("t", queued.id)
        assert ended.status == "completed"
        decoded = [decode_event(event) for event in events]
        check(decoded)
        assert fold(decoded) == ended


async def test_many_readers_can_follow_from_any_event(store: Store) -> None:
    async with serving(ScriptedBackend([TEXT], wait_s=0.001, tokens=True), store) as service:
        queued = await enqueue(service)
        live = await asyncio.gather(*(followed(service, queued.id) for _ in range(5)))
        whole = await followed(service, queued.id)
        assert all(prompt_texts == whole for prompt_texts in live)
        for after in range(-1, len(whole) + 3):
            assert await followed(service, queued.id, after) == whole[after + 1 :]


async def test_running_response_can_be_retrieved(store: Store) -> None:
    backend = Gated()
    async with serving(backend, store) as service:
        queued = await enqueue(service)
        observed = await until(service, queued.id, lambda response: bool(response.output))
        assert observed.status == "in_progress"
        assert observed.output[0].status == "in_progress"  # type: ignore[union-attr]
        backend.gate.set()
        await followed(service, queued.id)
        assert (await service.retrieve("t", queued.id)).status == "completed"


async def test_cancelled_run_keeps_its_output(store: Store) -> None:
    backend = Gated()
    async with serving(backend, store) as service:
        queued = await enqueue(service)
        await until(service, queued.id, lambda response: bool(response.output))
        first = await service.cancel("t", queued.id)
        assert (first.status, first.usage, first.completed_at) == ("cancelled", None, None)
        assert first.output[0].status == "incomplete"  # type: ignore[union-attr]
        async with asyncio.timeout(60):
            await backend.left.wait()
        backend.gate.set()
        assert await service.cancel("t", queued.id) == first
        events = await followed(service, queued.id)
        assert fold(map(decode_event, events)).output == first.output
        with pytest.raises(InvalidRequest, match="cancelled"):
            await enqueue(service, previous_response_id=queued.id)


async def test_a_queued_run_can_be_cancelled(store: Store) -> None:
    async with serving(Gated(), store, lease=LeaseConfig(max_runs=0)) as service:
        queued = await enqueue(service)
        assert (await service.cancel("t", queued.id)).status == "cancelled"
        assert [event["type"] for event in await followed(service, queued.id)] == [
            "response.created",
            "response.queued",
        ]


async def test_cancel_and_completion_agree_on_one_status(store: Store) -> None:
    async with serving(ScriptedBackend([TEXT], wait_s=0.0005), store) as service:
        for n in range(20):
            queued = await enqueue(service)
            for _ in range(n * 5):
                await asyncio.sleep(0)
            answered = await service.cancel("t", queued.id)
            events = await followed(service, queued.id)
            stored = await service.retrieve("t", queued.id)
            assert stored == answered
            ends = [e["type"] for e in events if e["type"] == "response.completed"]
            assert len(ends) == (stored.status == "completed")
            assert fold(map(decode_event, events)).output == stored.output


async def test_cancel_rejects_unknown_and_synchronous_responses(store: Store) -> None:
    async with serving(ScriptedBackend([TEXT]), store) as service:
        with pytest.raises(NotFound):
            await service.cancel("t", "resp_none")
        run = await service.create(
            "t", parse_create_response(b'{"model": "scripted", "input": "hi"}')
        )
        await run.drive()
        with pytest.raises(InvalidRequest, match="synchronous"):
            await service.cancel("t", run.id)
        queued = await enqueue(service)
        await followed(service, queued.id)
        assert (await service.cancel("t", queued.id)).status == "completed"


async def test_delete_stops_a_running_response(store: Store) -> None:
    backend = Gated()
    async with serving(backend, store) as service:
        queued = await enqueue(service)
        await until(service, queued.id, lambda response: bool(response.output))
        await service.delete("t", queued.id)
        async with asyncio.timeout(60):
            await backend.left.wait()
        with pytest.raises(NotFound):
            await service.retrieve("t", queued.id)
        assert await followed(service, queued.id) == []


async def test_late_reader_sees_the_failure(store: Store) -> None:
    async with serving(Gated(), store, timeout_s=0.01) as service:
        queued = await enqueue(service)
        events = await followed(service, queued.id)
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert await followed(service, queued.id, len(events) - 2) == events[-1:]


@pytest.mark.parametrize("pause", range(0, 40, 7))
async def test_another_service_continues_a_released_run(store: Store, pause: int) -> None:
    """The result is as if undisturbed: the same text, no sequence number twice, none missing."""
    async with serving(ScriptedBackend([TEXT], tokens=True), MemoryStore()) as service:
        whole = await followed(service, (await enqueue(service)).id)
    backend = ScriptedBackend([TEXT], wait_s=0.001, tokens=True)
    async with serving(backend, store) as first:
        queued = await enqueue(first)
        for _ in range(pause * 3):
            await asyncio.sleep(0.0002)
    async with serving(backend, store) as second:
        events = await followed(second, queued.id)
        check([decode_event(event) for event in events])
        assert [e["sequence_number"] for e in events] == list(range(len(events)))
        assert [e["type"] for e in events] == [e["type"] for e in whole]
        assert [e.get("delta") for e in events] == [e.get("delta") for e in whole]
        ended = await second.retrieve("t", queued.id)
        assert ended.usage is not None and ended.usage.output_tokens == 40
        timeline = await second.timeline("t", queued.id)
        (item,) = timeline.items
        times = (timeline.created_at, timeline.started_at, item.started_at, item.completed_at)
        assert {*times, timeline.completed_at} == {NOW}, "also what the first service recorded"


@pytest.mark.parametrize("how", ["excerpt", "model"])
async def test_another_service_continues_interrupted_reasoning(store: Store, how: str) -> None:
    """An excerpt goes on where it was; a summary that a model would write is left out."""
    reasoning = [Open(Reasoning()), *(Text(f"Step {n}.\n\n") for n in range(30)), Close()]
    backend = ScriptedBackend([[*reasoning, *message_deltas("Four.")]], wait_s=0.001, tokens=True)
    policy = {"reasoning_summaries": how}
    fields = {"reasoning": {"summary": "detailed"}}
    async with serving(backend, store, **policy) as first:
        queued = await enqueue(first, **fields)
        await until(first, queued.id, lambda response: "Step 2" in str(response.output))
    async with serving(backend, store, **policy) as second:
        events = await followed(second, queued.id)
        check([decode_event(event) for event in events])
        ended = await second.retrieve("t", queued.id)
    item, _ = ended.output
    assert ended.status == "completed" and isinstance(item, Reasoning)
    assert item.content and "".join(part.text for part in item.content) == "".join(
        f"Step {n}.\n\n" for n in range(30)
    )
    if how == "excerpt":
        assert [part.text for part in item.summary] == [f"Step {n}." for n in range(30)]


async def test_run_without_token_ids_starts_its_model_call_again(store: Store) -> None:
    """The begun answer stays, as incomplete, and the numbers of the events go on."""
    async with serving(_StopsAfterWords([TEXT]), store) as first:
        queued = await enqueue(first)
        await until(first, queued.id, lambda response: bool(response.output))
    async with serving(ScriptedBackend([TEXT]), store) as second:
        events = await followed(second, queued.id)
        check([decode_event(event) for event in events])
        ended = await second.retrieve("t", queued.id)
    begun, whole = ended.output
    assert isinstance(begun, Message) and isinstance(whole, Message)
    assert (begun.status, whole.status, ended.status) == ("incomplete", "completed", "completed")
    assert whole.content[0].text == TEXT  # type: ignore[union-attr]
    assert TEXT.startswith(begun.content[0].text)  # type: ignore[union-attr]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert ended == fold([decode_event(event) for event in events])


@pytest.mark.parametrize("fields", [{}, {"interrupted_output": "fail"}])
async def test_run_that_was_interrupted_after_its_answer_ends_without_another(
    store: Store, fields: dict[str, Any]
) -> None:
    answer = [*reasoning_deltas("Hm."), *message_deltas(TEXT)]
    async with serving(_StopsAfterWords([answer], batches=len(answer)), store) as first:
        queued = await enqueue(first, **fields)
        await until(first, queued.id, lambda response: _is_complete(response.output, Message))
    async with serving(ScriptedBackend([answer]), store) as second:
        events = await followed(second, queued.id)
        check([decode_event(event) for event in events])
        ended = await second.retrieve("t", queued.id)
    assert [type(item) for item in ended.output] == [Reasoning, Message]
    assert ended.status == "completed" and ended.usage is not None
    assert ended.usage.output_tokens > 0


@pytest.mark.parametrize(
    "begun",
    [
        reasoning_deltas("Hm."),
        [Open(Message(role="assistant", content=(), phase="commentary")), Text("So."), Close()],
    ],
    ids=["reasoning", "commentary"],
)
async def test_run_that_was_interrupted_before_its_answer_is_answered(
    store: Store, begun: list[Delta]
) -> None:
    answer = [*begun, *message_deltas(TEXT)]
    async with serving(_StopsAfterWords([answer], batches=len(begun)), store) as first:
        queued = await enqueue(first)
        await until(first, queued.id, lambda response: _is_complete(response.output, object))
    async with serving(ScriptedBackend([answer]), store) as second:
        await followed(second, queued.id)
        ended = await second.retrieve("t", queued.id)
    assert ended.status == "completed" and _text_of(ended).endswith(TEXT)


def _is_complete(output: Sequence[Any], kind: type) -> bool:
    return any(isinstance(item, kind) and item.status == "completed" for item in output)


async def test_run_that_is_always_interrupted_fails_at_last(store: Store) -> None:
    async with serving(_StopsAfterWords([TEXT]), store) as first:
        queued = await enqueue(first)
        await until(first, queued.id, lambda response: bool(response.output))
    for count in range(2, 4):
        async with serving(_StopsAfterWords([TEXT]), store) as next_one:
            await until(next_one, queued.id, lambda response, n=count: len(response.output) == n)
    async with serving(_StopsAfterWords([TEXT]), store) as fourth:
        await until(fourth, queued.id, lambda response: len(response.output) == 4)
    async with serving(_StopsAfterWords([TEXT]), store) as last:
        await followed(last, queued.id)
        ended = await last.retrieve("t", queued.id)
    assert ended.status == "failed" and ended.error is not None
    assert "interrupted too often" in ended.error.message


_CALL = [Open(FunctionCall(call_id="call_1", name="pay", arguments="")), Text("{}"), Close()]


@pytest.mark.parametrize(
    ("script", "fields"),
    [([TEXT], {"interrupted_output": "fail"}), ([[*_CALL, *message_deltas(TEXT)]], {})],
    ids=["forbidden", "after a call of the client"],
)
async def test_run_without_token_ids_fails_where_it_must_not_start_again(
    store: Store, script: Any, fields: dict[str, Any]
) -> None:
    async with serving(_StopsAfterWords(script), store) as first:
        queued = await enqueue(first, **fields)
        await until(first, queued.id, lambda response: bool(response.output))
    async with serving(ScriptedBackend(script), store) as second:
        events = await followed(second, queued.id)
        check([decode_event(event) for event in events])
        ended = await second.retrieve("t", queued.id)
    assert ended.status == "failed" and ended.error is not None
    assert "cannot be continued" in ended.error.message


async def test_run_whose_upstream_breaks_off_calls_the_model_again(store: Store) -> None:
    async with serving(_FailsAfterWords([TEXT], failures=2), store) as service:
        queued = await enqueue(service)
        events = await followed(service, queued.id)
        ended = await service.retrieve("t", queued.id)
    check([decode_event(event) for event in events])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [item.status for item in ended.output] == ["incomplete", "incomplete", "completed"]  # type: ignore[union-attr]
    assert ended.status == "completed" and _text_of(ended).endswith(TEXT)


@pytest.mark.parametrize(
    ("script", "fields", "permanent", "attempts"),
    [
        ([TEXT], {}, False, 4),
        ([reasoning_deltas("Hm.") * 9], {}, False, 10),
        ([TEXT], {"interrupted_output": "fail"}, False, 1),
        ([TEXT], {}, True, 1),
        ([[*_CALL, *message_deltas(TEXT)]], {}, False, 1),
    ],
    ids=["unfinished items", "finished items", "forbidden", "permanent", "call of the client"],
)
async def test_run_whose_upstream_breaks_off_fails_where_it_must_not_start_again(
    store: Store, script: Any, fields: dict[str, Any], permanent: bool, attempts: int
) -> None:
    backend = _FailsAfterWords(script, batches=3, failures=99, permanent=permanent)
    async with serving(backend, store) as service:
        queued = await enqueue(service, **fields)
        events = await followed(service, queued.id)
        ended = await service.retrieve("t", queued.id)
    check([decode_event(event) for event in events])
    assert backend.attempts == attempts
    assert ended.status == "failed" and ended.error is not None
    assert ended.error.message.startswith("The upstream's answer broke off.")


async def test_accepting_server_does_not_start_a_taken_over_run_again(store: Store) -> None:
    """It still has the prepared request, and the log holds text without tokens."""
    accepting = make_service(ScriptedBackend([TEXT]), store, lease=LEASE)
    queued = await enqueue(accepting)
    async with serving(_StopsAfterWords([TEXT]), store) as other:
        await until(other, queued.id, lambda response: bool(response.output))
    accepting.start()
    try:
        events = await followed(accepting, queued.id)
        ended = await accepting.retrieve("t", queued.id)
    finally:
        await accepting.drain(0)
    check([decode_event(event) for event in events])
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    begun, whole = ended.output
    assert begun.status == "incomplete"  # type: ignore[union-attr]
    assert ended.status == "completed" and whole.content[0].text == TEXT  # type: ignore[union-attr]


async def test_accepting_server_does_not_repeat_a_tool_call(store: Store) -> None:
    """The first turn is over and its tool has run; the engine tells no tokens."""
    dice = Dice()
    stopped = asyncio.Event()
    shell = FunctionCall(call_id="", name="roll", namespace="dice", arguments="")
    rolls = [Open(shell), Text("{}"), Close()]

    def answer(conversation: Conversation, options: Options) -> Any:
        results = FunctionCallOutput | McpCall
        has_results = any(isinstance(item, results) for item in conversation.items)
        return "Well, well." if has_results else rolls

    accepting = make_service(
        ScriptedBackend(answer), store, lease=LEASE, providers={"mcp": dice}, first_id=1000
    )
    queued = await enqueue(accepting, tools=MCP)
    other_backend = _StopsAfterTools(rolls, stopped)
    async with serving(other_backend, store, providers={"mcp": dice}) as other:
        async with asyncio.timeout(60):
            await stopped.wait()
        await until(other, queued.id, lambda response: len(response.output) == 2)
    assert len(dice.rolled) == 1
    accepting.start()
    try:
        events = await followed(accepting, queued.id)
        ended = await accepting.retrieve("t", queued.id)
    finally:
        await accepting.drain(0)
    check([decode_event(event) for event in events])
    assert len(dice.rolled) == 1
    assert [type(item) for item in ended.output[:2]] == [McpListTools, McpCall]
    assert sum(isinstance(item, McpCall) for item in ended.output) == 1


class _StopsAfterWords(ScriptedBackend):
    """Begins an answer and never ends it. ``batches``: number of batches that it pushes."""

    def __init__(self, scripts: Any, *, batches: int = 2) -> None:
        super().__init__(scripts)
        self._batches = batches

    async def prepare(self, conversation: Conversation, options: Options) -> Any:
        return _UnendedReply(await super().prepare(conversation, options), self._batches)


class _UnendedReply(ReplyWrapper):
    def __init__(self, reply: Reply, batches: int) -> None:
        super().__init__(reply)
        self._batches = batches

    def resume(self, point: ResumePoint) -> Reply:
        return _UnendedReply(self._reply.resume(point), self._batches)

    async def pump(self, sink: DeltaSink) -> None:
        await push_all(self.deltas(), sink)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        async with aclosing(batches_of(self._reply)) as batches:
            for _ in range(self._batches):
                yield await anext(batches)
            await asyncio.Event().wait()


class _FailsAfterWords(_StopsAfterWords):
    """Begins an answer, and then fails. ``failures``: how often, before it answers."""

    def __init__(
        self, scripts: Any, *, batches: int = 2, failures: int, permanent: bool = False
    ) -> None:
        super().__init__(scripts, batches=batches)
        self._failures = failures
        self._permanent = permanent
        self.attempts = 0

    async def prepare(self, conversation: Conversation, options: Options) -> Any:
        reply = await ScriptedBackend.prepare(self, conversation, options)
        return _FailingReply(reply, self._batches, self)

    def fail(self) -> None:
        """Count an attempt. Raises ``BackendError`` if it fails."""
        self.attempts += 1
        if self.attempts <= self._failures:
            raise BackendError("The upstream's answer broke off.", permanent=self._permanent)


class _FailingReply(ReplyWrapper):
    def __init__(self, reply: Reply, batches: int, backend: _FailsAfterWords) -> None:
        super().__init__(reply)
        self._batches = batches
        self._backend = backend

    def resume(self, point: ResumePoint) -> Reply:
        return _FailingReply(self._reply.resume(point), self._batches, self._backend)

    async def pump(self, sink: DeltaSink) -> None:
        async with aclosing(batches_of(self._reply)) as batches:
            for _ in range(self._batches):
                await send(sink, await anext(batches))
            self._backend.fail()
            async for batch in batches:
                await send(sink, batch)


class _StopsAfterTools(ScriptedBackend):
    """Makes one call, and never answers its result."""

    def __init__(self, calls: Any, stopped: asyncio.Event) -> None:
        super().__init__([calls])
        self._stopped = stopped

    async def prepare(self, conversation: Conversation, options: Options) -> Any:
        if any(isinstance(item, FunctionCallOutput) for item in conversation.items):
            self._stopped.set()
            await asyncio.Event().wait()
        return await super().prepare(conversation, options)


class _Flaky:
    """A store whose ``load`` and ``claim`` fail a few times, each after the call took effect."""

    def __init__(self, store: Store, failures: int) -> None:
        self._store = store
        self.runs = _FlakyRuns(store.runs, failures)
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def load(self, tenant: str, response_id: str) -> Any:
        if self.failures:
            self.failures -= 1
            raise StoreError("The store does not answer.")
        return await self._store.load(tenant, response_id)


class _FlakyRuns:
    def __init__(self, runs: Any, failures: int) -> None:
        self._runs = runs
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runs, name)

    async def claim(self, *arguments: Any, **options: Any) -> Any:
        claims = await self._runs.claim(*arguments, **options)
        if claims and self.failures:
            self.failures -= 1
            raise StoreError("The store does not answer.")
        return claims


async def test_run_starts_after_the_store_failed_between_claim_and_load(store: Store) -> None:
    flaky: Any = _Flaky(store, 2)
    flaky.runs.failures = 0
    service = make_service(ScriptedBackend([TEXT]), flaky, lease=LEASE)
    queued = await enqueue(service)
    service.start()
    try:
        await followed(service, queued.id)
        assert (await service.retrieve("t", queued.id)).status == "completed"
    finally:
        await service.drain(0)
    assert flaky.failures == 0


async def test_run_starts_after_the_answer_to_its_claim_was_lost(store: Store) -> None:
    flaky: Any = _Flaky(store, 0)
    flaky.runs.failures = 2
    async with serving(ScriptedBackend([TEXT]), flaky) as service:
        queued = await enqueue(service)
        await followed(service, queued.id)
        assert (await service.retrieve("t", queued.id)).status == "completed"
    assert flaky.runs.failures == 0


class _RecordsTools(Dice):
    """Records the tool that it opens."""

    def __init__(self) -> None:
        super().__init__()
        self.tools: list[Mcp] = []

    @asynccontextmanager
    async def open(self, tool: Mcp, opening: ResponseContext) -> AsyncIterator[Toolset]:
        self.tools.append(tool)
        async with super().open(tool, opening) as toolset:
            yield toolset


async def test_taken_over_run_has_the_authorization_of_its_tools(store: Store) -> None:
    """The server that accepted the request never starts it."""
    seal = Encryptor((EncryptionKey.generate(),))
    secrets = {"authorization": "top-secret-token", "headers": {"X-Key": "top-secret-header"}}
    tool = {"type": "mcp", "server_label": "dice", "server_url": "http://localhost/mcp", **secrets}
    first = make_service(local(engine(["Never."])), store, providers={"mcp": Dice()}, seal=seal)
    queued = await enqueue(first, tools=[tool])
    (claim,) = await store.runs.claim(
        ClaimQuery(owner="spy", models={"scripted"}, limit=1, lease_s=10)
    )
    retrieved = await first.retrieve("t", queued.id)
    for public in (str(claim.job), msgspec.json.encode(retrieved).decode()):
        assert "top-secret" not in public
    dice = _RecordsTools()
    script = local(engine([tool_call("dice__roll", {}), "Six."]))
    async with serving(script, store, providers={"mcp": dice}, seal=seal) as second:
        await followed(second, queued.id)
        ended = await second.retrieve("t", queued.id)
    assert (ended.status, dice.rolled) == ("completed", ["{}"])
    (opened,) = dice.tools
    assert opened.authorization == "top-secret-token"
    assert opened.headers == {"X-Key": "top-secret-header"}


async def test_run_fails_if_the_secrets_of_its_tools_cannot_be_decrypted(store: Store) -> None:
    tool = {"type": "mcp", "server_label": "dice", "server_url": "http://localhost/mcp"}
    first = make_service(local(engine(["Never."])), store, providers={"mcp": Dice()})
    queued = await enqueue(first, tools=[{**tool, "authorization": "secret"}])
    async with serving(local(engine(["No."])), store, providers={"mcp": Dice()}) as second:
        await followed(second, queued.id)
        ended = await second.retrieve("t", queued.id)
    assert ended.status == "failed" and ended.error is not None
    assert "decrypt" in ended.error.message


async def test_drained_service_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with serving(ScriptedBackend([TEXT]), MemoryStore()) as service:
        queued = await enqueue(service)
        await followed(service, queued.id)
    assert asyncio.all_tasks() <= before


async def test_former_owner_cannot_write_events(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has lost its run stops at its next event, which is not stored."""
    backend = ScriptedBackend([TEXT], wait_s=0.002, tokens=True)
    owners, claim = list[str](), store.runs.claim

    async def record(query: ClaimQuery) -> Any:
        owners.append(query.owner)
        return await claim(query)

    monkeypatch.setattr(store.runs, "claim", record)
    async with serving(backend, store) as zombie:
        queued = await enqueue(zombie)
        await until(zombie, queued.id, lambda response: bool(response.output))
        store.runs.set_listener(_SilentListener())
        await store.runs.release(owners[0])
        other = make_service(ScriptedBackend([TEXT], tokens=True), store, lease=LEASE)
        other.start()
        try:
            events = await followed(other, queued.id)
        finally:
            await other.drain(0)
        assert [e["sequence_number"] for e in events] == list(range(len(events)))
        assert fold(map(decode_event, events)).status == "completed"


class _SilentListener:
    def on_run_queued(self) -> None: ...
    def on_run_lost(self, response_id: str, epoch: int) -> None: ...


async def test_unstored_background_response_expires(store: Store) -> None:
    from antiphon.store.base import Retention
    from tests.runs.scripted_service import NOW

    async with serving(ScriptedBackend([TEXT]), store, unstored_retention_s=600) as service:
        queued = await enqueue(service, store=False)
        await followed(service, queued.id)
        assert (await service.retrieve("t", queued.id)).status == "completed"
        with pytest.raises(InvalidRequest, match="not found"):
            await enqueue(service, previous_response_id=queued.id)
        await store.sweep(Retention(), NOW + 599)
        await service.retrieve("t", queued.id)
        await store.sweep(Retention(), NOW + 601)
        with pytest.raises(NotFound):
            await service.retrieve("t", queued.id)


async def test_conversation_is_locked_until_the_run_ends(store: Store) -> None:
    from antiphon.wire.resources.conversations import CreateConversation

    backend = Gated()
    async with serving(backend, store) as service:
        created = await service.conversations.create("t", CreateConversation())
        queued = await enqueue(service, conversation=created.id)
        with pytest.raises(InvalidRequest, match="Another process"):
            await enqueue(service, conversation=created.id)
        backend.gate.set()
        await followed(service, queued.id)
        assert len(await store.load_conversation_items("t", created.id)) == 2
        await enqueue(service, conversation=created.id)


async def test_runs_wait_for_capacity(store: Store) -> None:
    backend = Gated()
    async with serving(backend, store, lease=LeaseConfig(max_runs=1, lease_s=0.2)) as service:
        first, second = await enqueue(service), await enqueue(service)
        await until(service, first.id, lambda response: bool(response.output))
        assert (await service.retrieve("t", second.id)).status == "queued"
        backend.gate.set()
        await followed(service, second.id)
        assert (await service.retrieve("t", second.id)).status == "completed"


async def test_run_with_a_completion_window_waits_behind_others(store: Store) -> None:
    """It waits for at most half of the window."""
    from tests.runs.scripted_service import NOW

    service = make_service(ScriptedBackend([TEXT]), store, lease=LEASE)
    windows = ("8h", "2h", "soonest")
    ids = [
        (await enqueue(service, background_options={"completion_window": window})).id
        for window in windows
    ]

    async def claimed(now: float) -> list[str]:
        query = ClaimQuery(owner="x", models=["scripted"], limit=3, now=int(now))
        await store.runs.heartbeat(query)
        order = [windows[ids.index(claim.job.id)] for claim in await store.runs.claim(query)]
        await store.runs.release("x")
        return order

    assert await claimed(NOW + 3_599) == ["soonest", "2h", "8h"]
    assert await claimed(NOW + 3_600) == ["2h", "soonest", "8h"]
    assert await claimed(NOW + 4 * 3_600) == ["8h", "2h", "soonest"]


async def test_foreign_tenants_see_nothing(store: Store) -> None:
    async with serving(Gated(), store) as service:
        queued = await enqueue(service)
        for ask in (service.retrieve, service.cancel, service.delete, service.check_followable):
            with pytest.raises(NotFound):
                await ask("u", queued.id)
        async with aclosing(service.event_logs.follow("u", queued.id)) as batches:
            assert [batch async for batch in batches] == []


# --- tools ---------------------------------------------------------------------------------------

MCP = [{"type": "mcp", "server_label": "dice", "server_url": "http://localhost/mcp"}]


class Slow(Dice):
    """Dice that roll until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.rolling = asyncio.Event()
        self.landed = asyncio.Event()

    async def roll(
        self, arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        self.rolling.set()
        await self.landed.wait()
        async for step in super().roll(arguments, context):
            yield step


def _scripted_backend(arguments: Any) -> LocalBackend:
    return local(engine([tool_call("dice__roll", arguments), "Well, well."]))


@pytest.mark.requirement("API-HOSTED-RUN")
@pytest.mark.parametrize("arguments", [{"n": 1}, None])
async def test_tool_call_of_a_dead_server_fails_and_is_not_repeated(
    store: Store, arguments: Any
) -> None:
    dice, again = Slow(), Slow()
    async with serving(_scripted_backend(arguments), store, providers={"mcp": dice}) as first:
        queued = await enqueue(first, tools=MCP)
        async with asyncio.timeout(60):
            await dice.rolling.wait()
        await until(first, queued.id, lambda response: len(response.output) == 2)
    again.landed.set()
    scripted_engine = local(engine(["Well, well."]))
    async with serving(scripted_engine, store, providers={"mcp": again}) as second:
        events = await followed(second, queued.id)
        check([decode_event(event) for event in events])
        assert [e["sequence_number"] for e in events] == list(range(len(events)))
        ended = await second.retrieve("t", queued.id)
    assert ended.status == "completed"
    listed, rolled, message = ended.output
    assert isinstance(listed, McpListTools) and isinstance(rolled, McpCall)
    assert rolled.status == "failed" and "interrupted" in str(rolled.error)
    assert isinstance(message, Message) and again.rolled == []
    assert ended == fold([decode_event(event) for event in events])


async def test_run_with_tools_continues_from_its_last_turn(store: Store) -> None:
    words = " ".join(f"word{n}" for n in range(30))
    replies = [tool_call("dice__roll", {"n": 1}), words]

    def backend() -> LocalBackend:
        return local(engine(replies, wait_s=0.002))

    dice = Dice()
    async with serving(backend(), store, providers={"mcp": dice}) as first:
        queued = await enqueue(first, tools=MCP)
        await until(first, queued.id, lambda response: "word3 " in _text_of(response))
    assert dice.rolled == ['{"n": 1}']
    rest = engine(lambda prompt: words[len(prompt.rpartition("assistant\n")[2]) :])
    async with serving(local(rest), store, providers={"mcp": dice}) as second:
        events = await followed(second, queued.id)
        check([decode_event(event) for event in events])
        ended = await second.retrieve("t", queued.id)
    assert _text_of(ended) == words and ended.status == "completed"
    assert dice.rolled == ['{"n": 1}'] and dice.open_now == 0


def _text_of(response: Response) -> str:
    return "".join(
        getattr(part, "text", "")
        for item in response.output
        if isinstance(item, Message)
        for part in item.content
    )


async def test_ended_run_causes_no_claim_if_there_was_room(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last claim has taken all there was."""
    claims: list[int] = []
    claim = store.runs.claim

    async def count(*args: Any, **kwargs: Any) -> Any:
        found = await claim(*args, **kwargs)
        claims.append(len(found))
        return found

    monkeypatch.setattr(store.runs, "claim", count)
    lease = LeaseConfig(lease_s=3600, flush_s=0.001)
    async with serving(ScriptedBackend([TEXT]), store, lease=lease) as service:
        for run in range(3):
            queued = await enqueue(service)
            async with asyncio.timeout(60):
                while sum(claims) <= run:  # a claim skips a run that begins to be followed
                    await asyncio.sleep(0.001)
            await followed(service, queued.id)
    assert sum(claims) == 3 and len(claims) <= 5, "one at each start, and one for each run"


#: The lease of a server that sends a heartbeat every millisecond.
EAGER = LeaseConfig(lease_s=0.004, flush_s=0.001)


def calls_of(runs: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[Any]:
    """The results of all calls of this method of a run store from now on."""
    results = asyncio.Queue[Any]()
    method = getattr(runs, name)

    async def call(*args: Any, **kwargs: Any) -> Any:
        result = await method(*args, **kwargs)
        results.put_nowait(result)
        return result

    monkeypatch.setattr(runs, name, call)
    return results


async def test_idle_server_sends_heartbeats_and_claims_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeats = calls_of(store.runs, "heartbeat", monkeypatch)
    claims = calls_of(store.runs, "claim", monkeypatch)
    async with serving(ScriptedBackend([TEXT]), store, lease=EAGER), asyncio.timeout(60):
        assert not any([await heartbeats.get() for _ in range(10)])
        assert claims.qsize() <= 2, "at its start, and when it listens to others"


async def test_run_whose_notification_is_lost_is_claimed_after_a_heartbeat(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackgroundWorker, "on_run_queued", lambda self: None)
    claims = calls_of(store.runs, "claim", monkeypatch)
    async with serving(ScriptedBackend([TEXT]), store, lease=EAGER) as service:
        async with asyncio.timeout(60):
            assert await claims.get() == (), "at its start"
        await followed(service, (await enqueue(service)).id)


async def test_ended_run_causes_a_claim_if_there_was_no_room(store: Store) -> None:
    lease = LeaseConfig(lease_s=3600, flush_s=0.001, max_runs=1)
    async with serving(ScriptedBackend([TEXT]), store, lease=lease) as service:
        queued = [await enqueue(service) for _ in range(3)]
        for response in queued:
            await followed(service, response.id)
