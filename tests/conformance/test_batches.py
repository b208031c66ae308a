"""Batches of both APIs, through the official clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import httpx2
import openai
import pytest
from openai.types import Batch

from antiphon.backends.base import DeltaSink
from antiphon.backends.reading import EmbeddingBackend
from antiphon.backends.scripted_backend import ScriptedBackend, ScriptedReply
from antiphon.inference.conversation import Conversation, Options
from antiphon.runs.background.worker import LeaseConfig
from antiphon.store.base import Store
from antiphon.store.usage import UsageQuery
from antiphon.stream.deltas import Delta
from antiphon.tools.base import (
    CallContext,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)
from antiphon.wire import items as it
from antiphon.wire.tools import Function
from tests.conformance.conftest import Clients, Serve
from tests.conformance.scripts import call, message_deltas
from tests.conformance.server import NOW, Server
from tests.fakes.embedder import WordEmbedder

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
WAIT_S = 20.0


def line(number: int, url: str = CHAT, **body: Any) -> Json:
    body = {"model": "tiny", "messages": HI, **body}
    return {"custom_id": f"id-{number}", "method": "POST", "url": url, "body": body}


async def upload(client: openai.AsyncOpenAI, *lines: Json | str) -> str:
    content = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)
    file = await client.files.create(file=("in.jsonl", content.encode()), purpose="batch")
    return file.id


async def start(client: openai.AsyncOpenAI, *lines: Json | str, url: str = CHAT) -> Batch:
    file = await upload(client, *lines)
    return await client.batches.create(
        input_file_id=file,
        endpoint=url,  # type: ignore[arg-type]
        completion_window="24h",
        metadata={"a": "b"},
    )


async def end_of(client: openai.AsyncOpenAI, batch: Batch) -> Batch:
    """Wait for the end of a batch."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await client.batches.retrieve(batch.id)
            if found.status in ("completed", "failed", "expired", "cancelled"):
                return found
            await asyncio.sleep(0.01)


async def results(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Json]:
    """Return the lines of a result file by their custom ids, each of which occurs once."""
    if file_id is None:
        return {}
    content = await client.files.content(file_id)
    lines = [json.loads(one) for one in content.text.splitlines()]
    found = {one["custom_id"]: one for one in lines}
    assert len(found) == len(lines)
    return found


@pytest.mark.requirement("BA-RUN")
async def test_results_are_in_the_output_and_error_files(
    server: Server, client_of: Clients
) -> None:
    client = client_of(server.app)
    batch = await start(client, line(1), line(2, temperature=9), "", line(3, stream=True))
    assert batch.status == "validating" and batch.metadata == {"a": "b"}
    batch = await end_of(client, batch)
    Batch.model_validate(batch.model_dump(), strict=True)
    assert batch.status == "completed" and batch.errors is None and batch.model == "tiny"
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (3, 1, 2)
    assert batch.usage is not None and batch.usage.output_tokens == 2
    done = await results(client, batch.output_file_id)
    body = done["id-1"]["response"]["body"]
    assert done["id-1"]["response"]["status_code"] == 200 and done["id-1"]["error"] is None
    assert body["choices"][0]["message"]["content"] == "Hello there!"
    failed = await results(client, batch.error_file_id)
    assert failed["id-2"]["response"]["status_code"] == 400
    assert failed["id-2"]["response"]["body"]["error"]["param"] == "temperature"
    assert failed["id-3"]["response"]["body"]["error"]["param"] == "stream"
    files = await client.files.list(purpose="batch_output")
    assert {file.id for file in files.data} == {batch.output_file_id, batch.error_file_id}


@pytest.mark.requirement("BA-RUN")
@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/responses", {"input": "hi", "messages": None}),
        ("/v1/completions", {"prompt": "hi", "messages": None}),
        ("/v1/messages", {"max_tokens": 50}),
    ],
)
async def test_every_endpoint_that_answers_runs(
    serve: Serve, client_of: Clients, url: str, body: Json
) -> None:
    from tests.conformance.server import engine

    client = client_of(serve(engine(lambda prompt: "Hello there!")).app)
    batch = await end_of(client, await start(client, line(1, url, **body), url=url))
    assert batch.error_file_id is None
    done = await results(client, batch.output_file_id)
    assert "Hello" in json.dumps(done["id-1"]["response"]["body"])


@pytest.mark.requirement("BA-RUN")
async def test_embeddings_run(serve: Serve, client_of: Clients) -> None:
    client = client_of(serve(EmbeddingBackend("tiny", WordEmbedder(8))).app)
    texts = line(1, "/v1/embeddings", input=["a", "b"], messages=None)
    batch = await end_of(client, await start(client, texts, url="/v1/embeddings"))
    done = await results(client, batch.output_file_id)
    assert len(done["id-1"]["response"]["body"]["data"]) == 2


@pytest.mark.requirement("BA-FILE")
@pytest.mark.parametrize(
    ("lines", "code", "number"),
    [
        (["{"], "invalid_json_line", 1),
        ([line(1), {**line(2), "url": "/v1/responses"}], "invalid_url", 2),
        ([line(1), "", {**line(2), "method": "GET"}], "invalid_method", 3),
        ([line(1), line(1)], "duplicate_custom_id", 2),
        ([{**line(1), "custom_id": ""}], "missing_required_parameter", 1),
        ([{**line(1), "body": []}], "invalid_request", 1),
        ([" "], "empty_file", None),
    ],
)
async def test_faulty_file_fails_before_a_request_runs(
    server: Server, client_of: Clients, lines: list[Any], code: str, number: int | None
) -> None:
    client = client_of(server.app)
    batch = await end_of(client, await start(client, *lines))
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data
    assert [(each.code, each.line) for each in batch.errors.data] == [(code, number)]
    assert batch.output_file_id is None and batch.failed_at


@pytest.mark.requirement("BA-FILE")
async def test_unusable_requests_are_refused(server: Server, client_of: Clients) -> None:
    client = client_of(server.app)
    file = await client.files.create(file=("a", b"a"), purpose="user_data")
    given: Json = {"completion_window": "24h", "endpoint": CHAT, "input_file_id": file.id}
    faults = {"completion_window": "1h", "endpoint": "/v1/videos", "input_file_id": "file-none"}
    for name, value in [("input_file_id", file.id), *faults.items()]:
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.batches.create(**{**given, name: value})
        assert refusal.value.param == name
    with pytest.raises(openai.BadRequestError, match=r"output_expires_after\.seconds"):
        expiry = {"anchor": "created_at", "seconds": 3_599}
        await client.batches.create(**{**given, "output_expires_after": expiry})
    with pytest.raises(openai.NotFoundError):
        await client.batches.retrieve("batch_none")
    with pytest.raises(openai.NotFoundError):
        await client.batches.cancel("batch_none")


@pytest.mark.requirement("BA-CANCEL")
async def test_cancelled_batch_keeps_its_results(serve: Serve, client_of: Clients) -> None:
    client = client_of(serve(ScriptedBackend(["Hello!"], wait_s=0.02), batch_lines=1).app)
    batch = await start(client, *(line(number) for number in range(60)))
    async with asyncio.timeout(WAIT_S):
        while (await client.batches.retrieve(batch.id)).status != "in_progress":
            await asyncio.sleep(0.01)
    cancelled = await client.batches.cancel(batch.id)
    assert cancelled.status == "cancelling"
    batch = await end_of(client, batch)
    assert batch.status == "cancelled" and batch.cancelled_at
    failed = await results(client, batch.error_file_id)
    done = await results(client, batch.output_file_id)
    assert {each["error"]["code"] for each in failed.values()} == {"batch_cancelled"}
    assert len(done) + len(failed) == 60 and failed
    assert (await client.batches.cancel(batch.id)).status == "cancelled"


@pytest.mark.requirement("BA-WINDOW")
async def test_batch_expires_at_the_end_of_its_window(serve: Serve, client_of: Clients) -> None:
    server = serve(ScriptedBackend(["Hello!"], wait_s=0.02), batch_lines=1)
    client = client_of(server.app)
    file = await upload(client, *(line(number) for number in range(60)))
    batch = await client.batches.create(
        input_file_id=file,
        endpoint=CHAT,
        completion_window="2h",  # type: ignore[arg-type]
    )
    assert batch.expires_at == NOW + 7200
    server.now += 7200
    batch = await end_of(client, batch)
    assert batch.status == "expired"
    failed = await results(client, batch.error_file_id)
    assert {each["error"]["code"] for each in failed.values()} == {"batch_expired"}


@pytest.mark.requirement("BA-IDLE")
async def test_other_requests_interrupt_a_batch(serve: Serve, client_of: Clients) -> None:
    backend = ScriptedBackend(lambda conversation, options: " ".join(["word"] * 40), wait_s=0.01)
    server = serve(backend, batch_lines=1)
    client = client_of(server.app)
    batch = await start(client, line(1), line(2))
    async with asyncio.timeout(WAIT_S):
        while not backend.requests:
            await asyncio.sleep(0.005)
    answer = await client.responses.create(model="tiny", input="now")
    assert answer.output_text.startswith("word")
    assert backend.aborted >= 1 and server.service.batch_worker.interruptions >= 1
    batch = await end_of(client, batch)
    assert len(await results(client, batch.output_file_id)) == 2


@pytest.mark.requirement("BA-KILL")
async def test_another_server_continues_without_repeating_a_result(
    serve: Serve, client_of: Clients, store: Store
) -> None:
    backend = ScriptedBackend(["Hello!"], wait_s=0.005)
    first = serve(backend, on=store, batch_lines=2)
    batch = await start(client_of(first.app), *(line(number) for number in range(40)))
    async with asyncio.timeout(WAIT_S):
        while len(backend.requests) < 10:
            await asyncio.sleep(0.005)
    await first.service.batch_worker.drain()
    second = serve(ScriptedBackend(["Hello again!"]), on=store)
    client = client_of(second.app)
    batch = await end_of(client, batch)
    assert batch.request_counts is not None and batch.request_counts.completed == 40
    assert len(await results(client, batch.output_file_id)) == 40


class Payments(ToolProvider[Any]):
    """A provider of one tool that must not run twice. ``calls``: how often it was called. A call
    ends when ``may_end`` is set."""

    def __init__(self) -> None:
        self.calls = 0
        self.may_end = asyncio.Event()
        pay = it.McpCall(server_label="bank", name="pay", arguments="")
        self._toolset = Toolset(
            functions=(
                ToolFunction(tool=Function(name="pay"), initial_item=pay, handler=self._pay),
            )
        )

    @asynccontextmanager
    async def open(self, tool: Any, response: ResponseContext) -> AsyncIterator[Toolset]:
        yield self._toolset

    async def _pay(
        self, arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        self.calls += 1
        await self.may_end.wait()
        yield ToolResult(text="paid", fields={"output": "paid"})

    async def until_called(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while not self.calls:
                await asyncio.sleep(0.005)


def pays(conversation: Conversation, options: Options) -> list[Delta]:
    """The script of a model that calls the tool once, then answers."""
    is_paid = any(not isinstance(each, it.Message) for each in conversation.items)
    return message_deltas("done") if is_paid or not options.tools else call("{}", name="pay")


#: Lines with a server-side tool, for each API that has one.
PAYING = [
    ("/v1/responses", {"input": "hi", "tools": [{"type": "web_search"}], "messages": None}),
    (
        "/v1/responses",
        {"input": "hi", "tools": [{"type": "web_search"}], "messages": None, "store": False},
    ),
    (
        "/v1/messages",
        {"max_tokens": 50, "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    ),
]


@pytest.mark.requirement("BA-KILL")
@pytest.mark.parametrize(("url", "body"), PAYING)
async def test_a_line_that_dies_calls_no_tool_twice(
    serve: Serve, client_of: Clients, store: Store, url: str, body: Json
) -> None:
    """The first server dies while its tool runs: its claims stay, until its lease ends."""
    payments = Payments()
    providers = {"web_search": payments}
    lease = LeaseConfig(lease_s=0.05)
    first = serve(ScriptedBackend(pays), on=store, providers=providers, lease=lease)
    batch = await start(client_of(first.app), line(1, url, **body), url=url)
    await payments.until_called()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.runs, "release", AsyncMock())
        patch.setattr(first.service.batch_worker, "_release", AsyncMock())
        await first.service.drain(0)
    payments.may_end.set()
    second = serve(ScriptedBackend(pays), on=store, providers=providers, lease=lease)
    second.now += 1
    client = client_of(second.app)
    batch = await end_of(client, batch)
    done = await results(client, batch.output_file_id)
    assert "done" in json.dumps(done["id-1"]["response"]["body"])
    assert payments.calls == 1


@pytest.mark.requirement("BA-IDLE")
@pytest.mark.parametrize(("url", "body"), PAYING)
async def test_a_line_that_is_interrupted_keeps_the_result_of_its_tool(
    serve: Serve, client_of: Clients, url: str, body: Json
) -> None:
    payments = Payments()
    server = serve(ScriptedBackend(pays), providers={"web_search": payments})
    client = client_of(server.app)
    batch = await start(client, line(1, url, **body), url=url)
    await payments.until_called()
    answer = await client.responses.create(model="tiny", input="now")  # while the tool runs
    assert answer.output_text == "done"
    payments.may_end.set()
    batch = await end_of(client, batch)
    done = json.dumps(await results(client, batch.output_file_id))
    assert "done" in done and "unknown" not in done
    assert payments.calls == 1


class RecordingBackend(ScriptedBackend):
    """Records when the model begins and ends the answer to a text."""

    def __init__(self) -> None:
        super().__init__([" ".join(["word"] * 20)], wait_s=0.005)
        self.log: list[tuple[str, str]] = []

    async def prepare(self, conversation: Conversation, options: Options) -> ScriptedReply:
        reply = await super().prepare(conversation, options)
        pump = reply.pump
        last = conversation.items[-1]
        assert isinstance(last, it.Message)
        text = "".join(part.text for part in last.content if isinstance(part, it.InputText))

        async def recorded(sink: DeltaSink) -> None:
            self.log.append(("begin", text))
            await pump(sink)
            self.log.append(("end", text))

        reply.pump = recorded  # type: ignore[method-assign]
        return reply


@pytest.mark.requirement("BA-IDLE")
@pytest.mark.parametrize("background", [False, True])
async def test_requests_of_a_batch_wait_for_all_others(
    serve: Serve, client_of: Clients, background: bool
) -> None:
    """Measured by order: no line begins while the model answers another request, and the lines that
    ran when it arrived do not end before it."""
    backend = RecordingBackend()
    server = serve(backend, batch_lines=2)
    client = client_of(server.app)
    batch = await start(
        client,
        *(line(n, messages=[{"role": "user", "content": f"line {n}"}]) for n in range(9)),
    )
    async with asyncio.timeout(WAIT_S):
        while len(backend.log) < 2:
            await asyncio.sleep(0.005)
    answer = await client.responses.create(model="tiny", input="other", background=background)
    batch = await end_of(client, batch)
    assert (await client.responses.retrieve(answer.id)).status == "completed"
    log = backend.log
    assert log[log.index(("begin", "other")) + 1] == ("end", "other")
    assert server.service.batch_worker.interruptions >= 1
    assert len(await results(client, batch.output_file_id)) == 9


@pytest.mark.requirement("BA-CANCEL")
async def test_a_cancelled_batch_leaves_no_run(serve: Serve, client_of: Clients) -> None:
    backend = ScriptedBackend(lambda conversation, options: "word " * 400, wait_s=0.01)
    server = serve(backend, batch_lines=2)
    client = client_of(server.app)
    url = "/v1/responses"
    lines = (line(n, url, input="hi", messages=None, store=n == 1) for n in range(3))
    batch = await start(client, *lines, url=url)
    async with asyncio.timeout(WAIT_S):
        while len(backend.requests) < 2:
            await asyncio.sleep(0.005)
    await client.batches.cancel(batch.id)
    await end_of(client, batch)
    stored = (await server.get("responses")).json()["data"]
    assert [each["status"] for each in stored] == ["cancelled"]


@pytest.mark.requirement("BA-RUN")
async def test_lines_are_stored_as_their_requests_say(serve: Serve, client_of: Clients) -> None:
    server = serve(ScriptedBackend(["Hello!"]))
    client = client_of(server.app)
    batch = await start(client, line(1, n=2), line(2, store=True))
    batch = await end_of(client, batch)
    done = await results(client, batch.output_file_id)
    assert len(done["id-1"]["response"]["body"]["choices"]) == 2
    (stored,) = (await server.get("responses")).json()["data"]
    assert stored["id"].startswith("resp_chat_")
    query = UsageQuery(start=NOW - NOW % 86_400, end=NOW + 86_400, width=86_400)
    (used,) = await server.service.usage_counter.totals(query)
    assert (
        0
        < used.input_tokens
        == sum(
            done[name]["response"]["body"]["usage"]["prompt_tokens"] for name in ("id-1", "id-2")
        )
    )


@pytest.mark.requirement("BA-LIST")
async def test_batches_are_listed_newest_first(server: Server, client_of: Clients) -> None:
    client = client_of(server.app)
    made = [await start(client, line(number)) for number in range(3)]
    page = await client.batches.list(limit=2)
    assert [each.id for each in page.data] == [made[2].id, made[1].id]
    assert [each.id async for each in page] == [each.id for each in reversed(made)]


@pytest.fixture
async def anthropic_client(server: Server) -> AsyncIterator[Any]:
    from tests.conformance.anthropic_sdk import AsyncAnthropic

    transport = httpx2.ASGITransport(server.app)
    http_client = httpx2.AsyncClient(transport=transport)
    async with AsyncAnthropic(
        base_url="http://localhost", api_key="none", max_retries=0, http_client=http_client
    ) as client:
        yield client


@pytest.mark.requirement("BA-MESSAGES")
async def test_message_batches_run(server: Server, anthropic_client: Any) -> None:
    batches = anthropic_client.messages.batches
    good = {"model": "tiny", "max_tokens": 9, "messages": HI}
    requests = [{"custom_id": "a", "params": good}, {"custom_id": "b", "params": {"model": "tiny"}}]
    batch = await batches.create(requests=requests)
    assert batch.processing_status == "in_progress" and batch.results_url is None
    assert batch.request_counts.processing == 2
    async with asyncio.timeout(WAIT_S):
        while (batch := await batches.retrieve(batch.id)).processing_status != "ended":
            await asyncio.sleep(0.01)
    assert batch.request_counts.succeeded == 1 and batch.request_counts.errored == 1
    found = {each.custom_id: each.result async for each in await batches.results(batch.id)}
    assert found["a"].message.content[0].text == "Hello there!"
    assert found["b"].error.error.type == "invalid_request_error"
    assert [each.id async for each in batches.list()] == [batch.id]
    await batches.cancel(batch.id)
    await batches.delete(batch.id)
    assert [each.id async for each in batches.list()] == []


async def documented_calls(call: Any) -> None:
    form = {"file": ("in.jsonl", json.dumps(line(1)).encode())}
    file = await call("createFile", files=form, data={"purpose": "batch"})
    given = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    batch = await call("createBatch", json=given)
    await call("retrieveBatch", batch["id"])
    await call("listBatches", params={"limit": 1})
    await call("cancelBatch", batch["id"])
    params = {"model": "tiny", "max_tokens": 9, "messages": HI}
    requests = [{"custom_id": "a", "params": params}]
    batch = await call("createMessageBatch", json={"requests": requests})
    while (await call("retrieveMessageBatch", batch["id"]))["processing_status"] != "ended":
        await asyncio.sleep(0.01)
    await call("listMessageBatches", params={"limit": 1})
    await call("messageBatchResults", batch["id"])
    await call("cancelMessageBatch", batch["id"])
    await call("deleteMessageBatch", batch["id"])
