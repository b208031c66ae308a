"""Upstreams that reject, disconnect, hang and send invalid data, behind the whole server.

Clients see the same behavior with every kind of backend.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends.base import Backend
from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.remote import base as remote_base
from antiphon.backends.remote.chat_completions.backend import ChatCompletionsBackend
from antiphon.backends.remote.chat_completions.servers import FLAVOURS as CHAT
from antiphon.backends.remote.responses.backend import ResponsesBackend
from antiphon.backends.remote.responses.servers import FLAVOURS as RESPONSES
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.completions.engine import CompletionsEngine
from antiphon.engines.completions.servers import FLAVOURS as IDS
from antiphon.inference.tokens import ModelCard
from antiphon.store.records import ConversationLock, StoredResponse
from antiphon.store.usage import UsageRecord
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.tools.web_search.index import PageIndex
from antiphon.tools.web_search.provider import WebSearchProvider
from antiphon.upstream import sse as upstream_sse
from antiphon.upstream.client import Upstream
from antiphon.upstream.retries import RetryPolicy
from tests.conformance import oracle
from tests.conformance.asgi_clients import StreamingClient, WebSocketClient
from tests.conformance.server import Server
from tests.golden.models import MODELS
from tests.hypothesis_settings import examples
from tests.upstream.fakes import Answer, Fake, chunks, fake, json_answer, sse

KEY = "sk-of-the-operator"
WORDS = ("So", " far.")


async def _no_pause(seconds: float) -> None: ...


# --- backends and valid answers of their upstreams -----------------------------------------------


def _chat(upstream: Upstream) -> Backend:
    return ChatCompletionsBackend(upstream, "m", CHAT["plain"])


def _items(upstream: Upstream) -> Backend:
    return ResponsesBackend(upstream, "m", RESPONSES["plain"])


def _ids(upstream: Upstream) -> Backend:
    template, _, reasoning, tools = MODELS["qwen"]
    card = ModelCard(name="tiny", context_size=4096, chat_template=template, fingerprint="bytes")
    tokenizer = ByteTokenizer()
    engine = CompletionsEngine(upstream, "m", IDS["vllm"], tokenizer, card)
    dialect = ChatDialect(card, tokenizer, reasoning_format=reasoning, tool_format=tools)
    return LocalBackend(engine, dialect)


def _said_chat() -> list[bytes]:
    return chunks(*({"content": word} for word in WORDS))


def _said_items() -> list[bytes]:
    chunks = [
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": word} for word in WORDS
    ]
    part = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
    done = {"type": "response.output_item.done", "item": item}
    response = {"status": "completed", "output": [item]}
    return sse(*chunks, done, {"type": "response.completed", "response": response}, done=False)


def _said_ids() -> list[bytes]:
    chunks = [{"choices": [{"token_ids": list(word.encode())}]} for word in WORDS]
    return sse(*chunks, {"choices": [{"token_ids": [], "finish_reason": "stop"}]})


KINDS: dict[str, tuple[str, Callable[[Upstream], Backend], Callable[[], list[bytes]]]] = {
    "chat_completions": ("v1__chat__completions", _chat, _said_chat),
    "responses": ("v1__responses", _items, _said_items),
    "completions": ("v1__completions", _ids, _said_ids),
}


class CountingStore(MemoryStore):
    """A store that counts what is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[str] = []

    async def save(
        self,
        tenant: str,
        stored: StoredResponse,
        *,
        lock: ConversationLock | None = None,
        usage: UsageRecord | None = None,
    ) -> bool:
        self.saved.append(stored.response.status)
        return await super().save(tenant, stored, lock=lock, usage=usage)


class UpstreamServer(Server):
    """Our server in front of a scripted upstream. ``words``: a valid answer of the upstream."""

    playing: Fake
    counting_store: CountingStore
    words: list[bytes]

    async def events(self, **body: Any) -> list[dict[str, Any]]:
        reply = await self.post(stream=True, **body)
        assert reply.status_code == 200, reply.text
        return oracle.stream(reply.content)

    async def error(self, **body: Any) -> dict[str, Any]:
        reply = await self.post(**body)
        assert reply.status_code >= 400, reply.text
        assert KEY not in reply.text
        error: dict[str, Any] = oracle.error(reply)
        return {"http": reply.status_code, "headers": reply.headers, **error}


@asynccontextmanager
async def serve_upstream(
    kind: str, *answers: Answer, silence_s: float = 600, **policy: Any
) -> AsyncIterator[UpstreamServer]:
    path, make, words = KINDS[kind]
    async with fake(**{path: answers or [Answer(words())]}) as playing, asyncio.timeout(60):
        upstream = Upstream(playing.url, key=KEY, silence_s=silence_s, pause=_no_pause)
        backend, counting_store = make(upstream), CountingStore()
        server = UpstreamServer(backend, counting_store, reraise=True, **policy)
        server.playing, server.kept, server.words = playing, counting_store, words()
        try:
            yield server
        finally:
            await server.close()
            await backend.close()


#: How often a reply is begun whose upstream always dies after the first token. Replies of token ids
#: are continued where they ended.
REQUESTS = {"chat_completions": 1, "responses": 1, "completions": 11}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_way = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])


def rejecting(status: int = 400, message: str = "no", **error: Any) -> Answer:
    return json_answer({"error": {"message": message, **error}}, status)


# --- retries -------------------------------------------------------------------------------------


@pytest.mark.requirement("UP-RETRY")
@each_kind
@each_way
@pytest.mark.parametrize(
    "before",
    [
        [b"data: {nonsense\n\n"],
        [b'data: {"error": {"message": "no", "code": 500}}\n\n'],
        [b'data: {"choices": []}\n\n'],
        [b"<html>Bad gateway</html>"],
    ],
    ids=["nonsense", "an error", "nothing yet", "a page"],
)
async def test_failure_before_the_first_token_is_retried(
    kind: str, stream: bool, before: list[bytes]
) -> None:
    async with serve_upstream(kind, Answer(before), Answer(KINDS[kind][2]())) as server:
        reply = await server.post(stream=stream)
        assert reply.status_code == 200 and "".join(WORDS) in _text(reply)
        assert len(server.playing.bodies) == 2
    async with serve_upstream(kind, Answer([server.words[0], *before])) as server:
        last = (await server.events())[-1]
        assert last["type"] == "response.failed"
        assert len(server.playing.bodies) == REQUESTS[kind]


def _text(reply: httpx.Response) -> str:
    """Return the text of an answer, streamed or not."""
    if reply.headers["content-type"].startswith("application/json"):
        ended = reply.json()
    else:
        ended = oracle.stream(reply.content)[-1]["response"]
    parts = [part for item in ended["output"] for part in item.get("content") or ()]
    return "".join(part["text"] for part in parts)


# --- rejections ----------------------------------------------------------------------------------


@pytest.mark.requirement("UP-REFUSED", "UP-KEY")
@each_kind
@each_way
@pytest.mark.parametrize(
    ("answer", "http", "code", "param", "says"),
    [
        (
            rejecting(message="too long", code="context_length_exceeded", param="messages"),
            400,
            "context_length_exceeded",
            "input",
            "context window",
        ),
        (
            rejecting(message="temperature must be at most 2", param="temperature"),
            400,
            "invalid_prompt",
            "temperature",
            "at most 2",
        ),
        (
            rejecting(message="no", param="max_tokens", code="unsupported_parameter"),
            400,
            "unsupported_parameter",
            "max_output_tokens",
            "(its 'max_tokens')",
        ),
        (
            json_answer({"detail": [{"loc": ["body", "prompt", 3], "msg": "Bad"}]}, 422),
            400,
            "invalid_prompt",
            "input",
            "Bad",
        ),
        (rejecting(403, "Your input was flagged"), 400, "invalid_prompt", None, "flagged"),
        (rejecting(401, f"Bad key {KEY}"), 400, "invalid_prompt", None, "this server's API key"),
        (rejecting(403, f"Not with {KEY}"), 400, "invalid_prompt", None, "denies this server"),
        (rejecting(404, "no model m"), 400, "invalid_prompt", None, "no such model"),
        (rejecting(400, f"Odd: {KEY}"), 400, "invalid_prompt", None, "Odd: …"),
    ],
)
async def test_upstream_rejection_is_an_http_error(
    kind: str, stream: bool, answer: Answer, http: int, code: str, param: str | None, says: str
) -> None:
    async with serve_upstream(kind, answer) as server:
        error = await server.error(stream=stream)
        assert (error["http"], error["code"], error["param"]) == (http, code, param)
        assert says in error["message"]
        assert error["headers"]["x-should-retry"] == "false"
        assert len(server.playing.bodies) == 1 and server.kept.saved == []


@pytest.mark.requirement("UP-REFUSED")
@each_kind
@each_way
async def test_rate_limit_returns_429_with_retry_after(kind: str, stream: bool) -> None:
    busy = json_answer({"error": {"message": "slow"}}, 429, **{"retry-after": "21.5"})
    async with serve_upstream(kind, busy) as server:
        error = await server.error(stream=stream)
        assert (error["http"], error["code"]) == (429, "rate_limit_exceeded")
        assert error["headers"]["retry-after"] == "22" and error["type"] == "rate_limit_error"
        assert error["message"].endswith("Please try again in 22s.")
        assert server.kept.saved == []


@pytest.mark.requirement("UP-WORDS")
@each_kind
@each_way
@pytest.mark.parametrize(
    "answer",
    [
        rejecting(429, "You have no credit.", code="insufficient_quota"),
        rejecting(402, f"Insufficient Balance of {KEY}"),
    ],
)
async def test_upstream_without_credit_stops_clients_after_one_try(
    kind: str, stream: bool, answer: Answer
) -> None:
    async with serve_upstream(kind, answer) as server:
        error = await server.error(stream=stream)
        assert (error["http"], error["code"]) == (429, "insufficient_quota")
        assert error["type"] == "insufficient_quota"
        assert "This server has no credit left at its upstream." in error["message"]
        assert error["headers"]["x-should-retry"] == "false"
        assert "retry-after" not in error["headers"] and len(server.playing.bodies) == 1


@pytest.mark.requirement("UP-WORDS")
@each_kind
@each_way
async def test_retries_do_not_multiply_with_those_of_the_client(kind: str, stream: bool) -> None:
    broken, good = rejecting(503, "busy"), Answer(KINDS[kind][2]())
    async with serve_upstream(kind, *[broken] * 6, good, broken, good) as server:
        for tries in (4, 1, 1):
            before = len(server.playing.bodies)
            error = await server.error(stream=stream)
            assert (error["http"], error["code"]) == (503, "server_is_overloaded")
            assert error["message"].endswith("You can retry your request.")
            assert int(error["headers"]["retry-after"]) >= 1
            assert len(server.playing.bodies) - before == tries
        # From the first success on, requests are retried again.
        for tries in (1, 2):
            before = len(server.playing.bodies)
            assert (await server.post(stream=stream)).status_code == 200
            assert len(server.playing.bodies) - before == tries


@pytest.mark.requirement("UP-WORDS")
@each_kind
@pytest.mark.parametrize("status", [429, 503])
async def test_upstream_that_refuses_for_long_is_an_http_error(kind: str, status: int) -> None:
    busy = json_answer({"error": {"message": "slow"}}, status, **{"retry-after": "7"})
    async with serve_upstream(kind, busy) as server:
        error = await server.error(stream=True)
        assert error["http"] == status and error["headers"]["retry-after"] == "7"
        assert len(server.playing.bodies) == 3 and server.kept.saved == []
    async with serve_upstream(kind, busy, Answer(KINDS[kind][2]())) as server:
        events = await server.events()
        assert events[0]["type"] == "response.created"
        assert events[-1]["type"] == "response.completed"


@pytest.mark.requirement("UP-WORDS")
@each_kind
async def test_failure_inside_a_stream_says_that_it_can_be_retried(kind: str) -> None:
    async with serve_upstream(kind, Answer(_half(kind), cut=True)) as server:
        for event in (await server.events())[-2:]:
            error = event.get("error") or event["response"]["error"]
            assert error["code"] == "server_error"
            assert error["message"].endswith("You can retry your request.")


@pytest.mark.requirement("UP-WORDS")
@pytest.mark.parametrize(
    ("agent", "empty"),
    [("ai/7.0.173 ai-sdk/open-responses/2.0.36 runtime/node.js/22", ""), ("codex", None)],
)
async def test_errors_have_strings_for_clients_that_cannot_read_null(
    agent: str, empty: str | None
) -> None:
    async with serve_upstream("chat_completions", rejecting(401)) as server:
        for stream, model in ((False, "tiny"), (True, "tiny"), (False, "none")):
            reply = await server.client.post(
                "/v1/responses",
                json={"model": model, "input": "hi", "stream": stream},
                headers={"user-agent": agent},
            )
            error = reply.json()["error"]
            assert isinstance(error["message"], str) and error["code"]
            if model == "tiny":
                assert error["param"] == empty


@pytest.mark.requirement("UP-REFUSED")
@each_kind
async def test_upstream_rejection_fails_a_background_response(kind: str) -> None:
    async with serve_upstream(kind, rejecting(param="top_p")) as server:
        queued = (await server.post(background=True)).json()
        while (found := (await server.get(f"responses/{queued['id']}")).json())["status"] in (
            "queued",
            "in_progress",
        ):
            await asyncio.sleep(0)
        assert found["status"] == "failed"
        assert (found["error"]["code"], found["error"]["param"]) == ("invalid_prompt", "top_p")


@pytest.mark.requirement("UP-REFUSED")
@each_kind
async def test_upstream_rejection_is_a_websocket_error_frame(kind: str) -> None:
    async with (
        serve_upstream(kind, rejecting(param="top_p")) as server,
        WebSocketClient(server.app) as wire,
    ):
        wire.create(input="hi", model="tiny")
        (event,) = await wire.events()
        assert (event["type"], event["status"]) == ("error", 400)
        assert (event["error"]["param"], event["error"]["code"]) == ("top_p", "invalid_prompt")


@pytest.mark.requirement("UP-REFUSED")
@each_kind
@each_way
@pytest.mark.parametrize("n", [1, 2])
async def test_upstream_rejection_uses_the_chat_error_shape(
    kind: str, stream: bool, n: int
) -> None:
    async with serve_upstream(kind, rejecting(param="max_tokens", message="too many")) as server:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream, "n": n}
        reply = await server.client.post("/v1/chat/completions", json={"model": "tiny", **body})
        error = oracle.error(reply)
        assert reply.status_code == 400 and "too many" in error["message"]
        assert error["param"] == "max_completion_tokens"


# --- waiting -------------------------------------------------------------------------------------


@pytest.mark.requirement("UP-FIRST-WORD")
@each_kind
async def test_late_rejection_is_an_error_event(kind: str) -> None:
    release = asyncio.Event()
    answer = rejecting(param="top_p")
    answer.held = release
    async with (
        serve_upstream(kind, answer, first_delta_wait_s=0.001) as server,
        StreamingClient(server.app) as line,
    ):
        assert (await line.event())["type"] == "response.created"
        assert line.status == 200
        release.set()
        events = await line.rest()
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert events[-1]["response"]["error"]["param"] == "top_p"
    assert server.kept.saved == ["failed"]


@pytest.mark.requirement("UP-FIRST-WORD")
@each_kind
async def test_late_answer_is_streamed_completely(kind: str) -> None:
    release = asyncio.Event()
    answer = Answer(KINDS[kind][2](), held=release)
    async with (
        serve_upstream(kind, answer, first_delta_wait_s=0.001) as server,
        StreamingClient(server.app) as line,
    ):
        assert (await line.event())["type"] == "response.created"
        release.set()
        assert (await line.rest())[-1]["type"] == "response.completed"


@pytest.mark.requirement("UP-FIRST-WORD")
@each_kind
async def test_plain_request_waits_for_the_upstream(kind: str) -> None:
    release = asyncio.Event()
    answer = rejecting()
    answer.held = release
    async with serve_upstream(kind, answer, first_delta_wait_s=0.001, keepalive_s=0.004) as server:
        reply = asyncio.create_task(server.error())
        while not server.playing.bodies:
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.02, release.set)
        assert (await reply)["http"] == 400 and server.kept.saved == []


@pytest.mark.requirement("UP-FIRST-WORD")
@each_kind
async def test_keepalives_are_sent_before_the_first_token(kind: str) -> None:
    release = asyncio.Event()
    answer = Answer(KINDS[kind][2](), held=release)
    async with (
        serve_upstream(kind, answer, keepalive_s=0.004) as server,
        StreamingClient(server.app) as line,
    ):
        types = [(await line.event())["type"] for _ in range(3)]
        assert types == ["response.created", "response.in_progress", "keepalive"]
        release.set()
        assert (await line.rest())[-1]["type"] == "response.completed"


@pytest.mark.requirement("UP-FIRST-WORD", "UP-LEAVE")
@each_kind
async def test_disconnect_before_the_first_token(kind: str) -> None:
    answer = Answer(held=asyncio.Event())
    async with serve_upstream(kind, answer) as server, StreamingClient(server.app) as line:
        while not server.playing.bodies:
            await asyncio.sleep(0)
        line.disconnect()
        await server.playing.gone.wait()
    assert server.kept.saved == [] and line.status is None


@pytest.mark.requirement("UP-REFUSED")
async def test_rejection_after_a_tool_turn_is_an_event() -> None:
    output = {"name": "browser__search", "arguments": '{"query": "fjord"}'}
    call = {"index": 0, "id": "call_1", "function": output}
    asks = Answer(chunks({"tool_calls": [call]}, reason="tool_calls"))
    index = PageIndex(":memory:")
    providers = {"web_search": WebSearchProvider(index, is_external=False)}
    async with serve_upstream("chat_completions", asks, rejecting(), providers=providers) as server:
        events = await server.events(tools=[{"type": "web_search"}])
        last = events[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "invalid_prompt"
        assert [item["type"] for item in last["response"]["output"]] == ["web_search_call"]
        assert len(server.playing.bodies) == 2
    await index.close()


# --- failures ------------------------------------------------------------------------------------


def raw_answer(head: str, body: bytes) -> Answer:
    return Answer(raw=f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + body)


STREAM = "content-type: text/event-stream"
BOMB = gzip.compress(b"data: {}\n\n" * 10**6)

#: Invalid data in place of an answer.
NOTHINGS = {
    "nothing": Answer(),
    "cut": Answer(cut=True),
    "no HTTP": Answer(raw=b"220 smtp\r\n"),
    "half a head": Answer(raw=b"HTTP/1.1 200 OK\r\ncontent-ty"),
    "a page": Answer([b"<html>\nIt works!\n</html>"], headers={"content-type": "text/html"}),
    "a page with a status": Answer([b"<html>Bad gateway</html>"], status=502),
    "moved": Answer([b""], status=307, headers={"location": "/elsewhere"}),
    "empty JSON": raw_answer("content-type: application/json\r\ncontent-length: 0", b""),
    "no JSON": raw_answer("content-type: application/json\r\ncontent-length: 4", b"<!--"),
    "an error and 200": raw_answer(
        "content-type: application/json\r\ncontent-length: 21", b'{"error": "exploded"}'
    ),
    "less than said": raw_answer("content-type: application/json\r\ncontent-length: 90", b"{"),
    "a bomb": raw_answer(f"{STREAM}\r\ncontent-encoding: gzip\r\nconnection: close", BOMB),
    "broken JSON": Answer(sse('{"choices": [', '{"type"')),
    "a list": Answer(sse("[1, 2]")),
    "a word": Answer(sse("null", "7")),
    "no text": Answer([b"data: \xff\xfe{}\n\n"]),
    "a deep thing": Answer(sse("[" * 50_000)),
    "a deep error": Answer(sse('{"error":' + "[" * 50_000)),
    "chunked wrongly": raw_answer(f"{STREAM}\r\ntransfer-encoding: chunked", b"zz\r\n{}"),
}


@pytest.mark.requirement("UP-NONSENSE")
@each_kind
@pytest.mark.parametrize("answer", NOTHINGS.values(), ids=NOTHINGS)
async def test_invalid_upstream_answer_is_an_http_error(kind: str, answer: Answer) -> None:
    async with serve_upstream(kind, answer) as server:
        error = await server.error(stream=True)
        wrong_address = answer.status == 307
        expected = (400, "invalid_prompt") if wrong_address else (503, "server_is_overloaded")
        assert (error["http"], error["code"]) == expected
        assert "upstream" in error["message"] and "127.0.0.1" not in error["message"]
        assert server.kept.saved == []


@pytest.mark.requirement("UP-RETRY")
@each_kind
@pytest.mark.parametrize(
    "failing",
    ["nothing", "cut", "no HTTP", "half a head", "a page with a status", "less than said"],
)
async def test_disconnect_before_the_first_token_is_retried(kind: str, failing: str) -> None:
    async with serve_upstream(kind, NOTHINGS[failing], Answer(KINDS[kind][2]())) as server:
        assert (await server.events())[-1]["type"] == "response.completed"
        assert len(server.playing.bodies) == 2


@pytest.mark.requirement("UP-SILENCE")
@each_kind
@pytest.mark.parametrize("headed", [False, True])
async def test_silent_upstream_times_out(kind: str, headed: bool) -> None:
    answer = Answer(hang=True, held=None if headed else asyncio.Event())
    async with serve_upstream(kind, answer, silence_s=0.02) as server:
        error = await server.error(stream=True)
        assert error["http"] == 503 and "took too long" in error["message"]


def _half(kind: str) -> list[bytes]:
    return KINDS[kind][2]()[:1]


#: Failures after the first token.
BREAKS: dict[str, dict[str, Any]] = {
    "dies": {"cut": True},
    "ends": {},
    "hangs": {"hang": True},
    "half a line": {"more": b'data: {"cho', "cut": True},
    "half an event": {"more": b'data: {"choices": [{"delta"'},
    "no JSON": {"more": b"data: {]}\n\n"},
    "numbers": {"more": b'data: {"choices": 7, "type": 7}\n\n'},
    "no text": {"more": b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'},
    "an error": {"more": b'data: {"error": {"message": "out of memory", "code": 500}}\n\n'},
    "a long line": {"more": b"data: " + b"x" * 3000},
    "a long event": {"more": b"data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n" * 100},
}


@pytest.mark.requirement("UP-NONSENSE", "UP-RETRY")
@each_kind
@pytest.mark.parametrize("broken", BREAKS)
async def test_disconnect_after_the_first_token_fails(
    kind: str, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_sse, "MAX_RESPONSE_BYTES", 2000)
    how = dict(BREAKS[broken])
    if kind == "responses" and broken == "numbers":
        how["more"] = b'data: {"type": 7}\n\n'
    answer = Answer([*_half(kind), how.pop("more", b"")], **how)
    async with serve_upstream(kind, answer, silence_s=0.05) as server:
        events = await server.events()
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        (message,) = events[-1]["response"]["output"]
        # The model is not called again if the answer has no token ids, because it then comes from
        # another kind of server, or if it is too long, because the next one would be, too.
        is_final = broken in ("no text", "a long line", "a long event")
        requests = 1 if is_final else REQUESTS[kind]
        rest = "\ufffd" if (kind, broken) == ("chat_completions", "no text") else ""
        assert message["content"][0]["text"] == "So" * requests + rest
        assert message["status"] == "incomplete"
        assert events[-1]["response"]["error"]["code"] == "server_error"
        assert len(server.playing.bodies) == requests
        assert server.kept.saved == ["failed"]


@pytest.mark.requirement("UP-NONSENSE")
@pytest.mark.parametrize("kind", ["chat_completions", "responses"])
async def test_endless_upstream_stream_fails(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upstream with token ids sends no more tokens than requested."""
    monkeypatch.setattr(remote_base, "MAX_RESPONSE_BYTES", 2000)
    first, *_ = words = KINDS[kind][2]()
    output = words[:-2] if kind == "responses" else [first]
    async with serve_upstream(kind, Answer(output * 2000, hang=True)) as server:
        last = (await server.events())[-1]
        assert last["type"] == "response.failed"
        assert "too long" in last["response"]["error"]["message"]
        assert len(last["response"]["output"]) <= 20
        await asyncio.wait_for(server.playing.gone.wait(), 60)


@pytest.mark.requirement("UP-NONSENSE")
@each_kind
async def test_sse_comments_are_ignored(kind: str) -> None:
    storm = b": still there\n\n" * 2000
    pieces = [piece for word in KINDS[kind][2]() for piece in (storm, word)]
    async with serve_upstream(kind, Answer(pieces)) as server:
        assert (await server.events())[-1]["type"] == "response.completed"


@pytest.mark.requirement("UP-NONSENSE", "UP-RETRY")
@each_kind
async def test_broken_plain_answer_tells_clients_to_retry(kind: str) -> None:
    """Only output is lost. No tool of the server has run."""
    async with serve_upstream(kind, Answer(_half(kind), cut=True)) as server:
        error = await server.error()
        assert error["http"] == 502 and error["headers"]["x-should-retry"] == "true"
        assert server.kept.saved == ["failed"]


_TEXT = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}
_ITEM = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "a"}
_END = {"type": "response.completed"}


def _ended(**usage: Any) -> dict[str, Any]:
    return {**_END, "response": {"status": "completed", "usage": usage}}


@pytest.mark.requirement("UP-NONSENSE")
@pytest.mark.parametrize(
    ("kind", "chunks", "counts"),
    [
        (
            "chat_completions",
            [{**_TEXT, "usage": {"prompt_tokens": -5, "completion_tokens": -7}}],
            (0, 0),
        ),
        (
            "chat_completions",
            [{**_TEXT, "usage": {"prompt_tokens": 10**30, "completion_tokens": 7}}],
            (2**40, 7),
        ),
        ("responses", [_ITEM, _ended(input_tokens=-5, output_tokens=True)], (0, 1)),
        ("responses", [_ITEM, _ended(input_tokens=10**30, output_tokens=3)], (2**40, 3)),
        (
            "completions",
            [
                {
                    "choices": [{"token_ids": [97], "finish_reason": "stop"}],
                    "usage": {"prompt_tokens_details": {"cached_tokens": -8}},
                }
            ],
            (43, 1),
        ),
    ],
)
async def test_invalid_token_counts_are_clamped(
    kind: str, chunks: list[Any], counts: tuple[int, int]
) -> None:
    async with serve_upstream(kind, Answer(sse(*chunks))) as server:
        used = (await server.events())[-1]["response"]["usage"]
        assert (used["input_tokens"], used["output_tokens"]) == counts
        assert used["input_tokens_details"]["cached_tokens"] == 0


@pytest.mark.requirement("UP-NONSENSE")
@pytest.mark.parametrize("id", [-5, 2**33, 10**30])
async def test_invalid_token_ids_are_an_error(id: int) -> None:
    chunks = sse({"choices": [{"token_ids": [id], "finish_reason": "stop"}]})
    async with serve_upstream("completions", Answer(chunks)) as server:
        error = await server.error()
        assert error["http"] == 503 and "cannot be read" in error["message"]


@pytest.mark.requirement("UP-NONSENSE")
async def test_token_ids_of_another_vocabulary_are_dropped() -> None:
    chunks = sse({"choices": [{"token_ids": [5000], "finish_reason": "stop"}]})
    async with serve_upstream("completions", Answer(chunks)) as server:
        error = await server.error()
        assert error["http"] == 502 and "do not belong to" in error["message"]
        assert len(server.playing.bodies) == 1


# --- random data ---------------------------------------------------------------------------------

NAMES = (
    *("choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments"),
    *("index", "id", "finish_reason", "logprobs", "top_logprobs", "token", "logprob", "bytes"),
    *("usage", "prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens"),
    *("reasoning", "reasoning_content", "reasoning_details", "refusal", "error", "code", "param"),
    *("type", "item", "item_id", "output_index", "response", "output", "status", "annotation"),
    *("summary", "part", "text", "input_tokens", "output_tokens", "incomplete_details", "reason"),
    *("token_ids", "token_logprobs", "tokens", "url", "call_id", "role", "annotations", "object"),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(("stop", "length", "error", "message", "function_call", "reasoning", "msg")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=10,
)


def _mutate(draw: st.DrawFn, value: Any) -> Any:
    """Replace random parts of a value."""
    if draw(st.integers(0, 9)) == 0:
        return draw(VALUES)
    if isinstance(value, dict):
        return {name: _mutate(draw, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_mutate(draw, inner) for inner in value]
    return value


@st.composite
def mutated_answers(draw: st.DrawFn, kind: str) -> list[bytes]:
    """Return a valid answer of the upstream with random parts replaced."""
    payloads = [piece[6:].strip() for piece in RICH[kind]]
    known = [json.loads(payload) for payload in payloads if payload != b"[DONE]"]
    return sse(*(_mutate(draw, payload) for payload in known), done=draw(st.booleans()))


@pytest.mark.requirement("UP-NONSENSE")
@each_kind
@examples(8)
@given(data=st.data())
def test_any_upstream_output_gives_a_valid_response(kind: str, data: st.DataObject) -> None:
    pieces = data.draw(mutated_answers(kind))

    async def ask() -> None:
        backend = KINDS[kind][1](ReplayUpstream(pieces))
        server = Server(backend, MemoryStore(), reraise=True)
        # Closed also when the test fails: objects that the garbage collector finalizes while pytest
        # parses the source for its report make CPython 3.11 raise a SystemError there.
        try:
            reply = await server.post(stream=True, include=["message.output_text.logprobs"])
        finally:
            await server.close()
            await backend.close()
        if reply.status_code == 200:
            last = oracle.stream(reply.content)[-1]["response"]
            assert min(_numbers(last["usage"])) >= 0
        else:
            oracle.error(reply)

    asyncio.run(ask())


def _numbers(usage: dict[str, Any]) -> Iterator[int]:
    for value in usage.values():
        yield from _numbers(value) if isinstance(value, dict) else [value]


class ReplayUpstream(Upstream):
    """An upstream client without a socket that yields the given pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__("http://nowhere", pause=_no_pause)
        self._pieces = pieces

    async def stream(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> AsyncGenerator[list[bytes], None]:
        reader = upstream_sse.SseParser()
        for piece in self._pieces:
            if found := reader.feed(piece):
                yield found
        if reader.done:
            yield []


_LOGPROBS = {"content": [{"token": "So", "logprob": -0.1, "bytes": [83, 111], "top_logprobs": []}]}
_CALL = {"index": 0, "id": "call_1", "function": {"name": "look", "arguments": '{"a": 1}'}}
_USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
#: Answers with every kind of content.
RICH: dict[str, list[bytes]] = {
    "chat_completions": sse(
        {"choices": [{"index": 0, "delta": {"reasoning": "Hm."}}]},
        {"choices": [{"index": 0, "delta": {"content": "So"}, "logprobs": _LOGPROBS}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [_CALL]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": _USAGE},
    ),
    "responses": [
        *sse(
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {"type": "reasoning", "id": "rs_1", "summary": []},
            },
            {
                "type": "response.reasoning_summary_text.delta",
                "output_index": 0,
                "summary_index": 0,
                "delta": "Hm.",
            },
            {
                "type": "response.output_item.done",
                "output_index": 0,
                "item": {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [{"type": "summary_text", "text": "Hm."}],
                },
            },
            {
                "type": "response.output_item.added",
                "output_index": 1,
                "item": {
                    "type": "function_call",
                    "id": "fc_1",
                    "call_id": "call_1",
                    "name": "look",
                    "namespace": "docs",
                    "caller": {"type": "program", "caller_id": "prog_1"},
                    "arguments": "",
                },
            },
            {
                "type": "response.function_call_arguments.delta",
                "output_index": 1,
                "item_id": "fc_1",
                "delta": '{"a": 1}',
            },
            {
                "type": "response.function_call_arguments.done",
                "output_index": 1,
                "item_id": "fc_1",
                "arguments": '{"a": 1}',
            },
            {
                "type": "response.output_item.added",
                "output_index": 2,
                "item": {"type": "message", "id": "msg_1", "phase": "commentary", "content": []},
            },
            {
                "type": "response.output_text.annotation.added",
                "item_id": "msg_1",
                "output_index": 2,
                "annotation": {
                    "type": "url_citation",
                    "url": "http://a",
                    "title": "a",
                    "start_index": 0,
                    "end_index": 1,
                },
            },
            done=False,
        ),
        *_said_items(),
    ],
    "completions": sse(
        {
            "choices": [
                {
                    "token_ids": [83],
                    "logprobs": {
                        "tokens": ["token_id:83"],
                        "token_logprobs": [-0.1],
                        "top_logprobs": [{"token_id:83": -0.1}],
                    },
                }
            ]
        },
        {"choices": [{"token_ids": [111], "finish_reason": "stop"}]},
        {"choices": [], "usage": _USAGE},
    ),
}
