"""The stream against a server that says what no model would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from antiphon.engines.base import Sampling
from antiphon.engines.common.thread_channel import ThreadChannel
from antiphon.engines.llama.partial_tokens import PartialTokens
from antiphon.engines.llama.stream import UNKNOWN_LOGPROB, LlamaStream
from antiphon.errors import BackendError
from antiphon.inference.tokens import Chunk

from .test_partial_tokens import Bytes


class Server:
    """Says its events; ``stopped_after`` tells how many were heard."""

    def __init__(self, *events: Any) -> None:
        self.events = events
        self.stopped_after: int | None = None

    def handle_completions(self, request: bytes, callback: Callable[[bytes], bool]) -> None:
        for number, event in enumerate(self.events, 1):
            if isinstance(event, Exception):
                raise event
            if callback(event if isinstance(event, bytes) else json.dumps(event).encode()):
                self.stopped_after = number
                return


def token(id: int, number: int, text: str | None = None, **choice: Any) -> dict[str, Any]:
    content = chr(id) if text is None else text
    return {
        "choices": [{"text": content, "finish_reason": None, **choice}],
        "__verbose": {"content": content, "tokens": [id], "tokens_predicted": number},
    }


def end(reason: str = "length", predicted: int = 0) -> dict[str, Any]:
    return {
        "choices": [{"text": "", "finish_reason": reason}],
        "__verbose": {"tokens": [], "tokens_predicted": predicted},
    }


async def read(server: Server, sampling: Sampling | None = None) -> list[Chunk]:
    tokenizer = Bytes()
    sampling = sampling or Sampling(max_tokens=100)
    stream = LlamaStream(asyncio.get_running_loop(), tokenizer, PartialTokens(tokenizer), sampling)
    await asyncio.to_thread(stream.run, server, lambda: b"{}")
    return [chunk async for chunk in stream]


def ids(chunks: Iterable[Chunk]) -> list[int]:
    return [id for chunk in chunks for id in chunk.ids]


async def test_chunks_before_the_first_read_are_merged() -> None:
    progress = {"choices": [{}], "__verbose": {"tokens": [0], "prompt_progress": {"cache": 3}}}
    server = Server(progress, progress, token(97, 1), token(98, 2), end())
    assert await read(server) == [Chunk((97, 98), finish="length", cached_tokens=3)]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"error": {"code": 500, "message": "out of memory"}}, "out of memory"),
        (b"not json", "malformed"),
        ({"choices": []}, "index"),
        (RuntimeError("gone"), "gone"),
    ],
)
async def test_failure_raises_backend_error(event: Any, message: str) -> None:
    """The engine's own words are told; of what nobody expected the log has them."""
    with pytest.raises(BackendError) as raised:
        await read(Server(token(97, 1), event, token(98, 2), end()))
    cause = raised.value.__cause__
    assert message in (raised.value.message if cause is None else str(cause))
    assert cause is None or raised.value.message == "The engine failed."


async def test_abort_while_a_token_is_sent_stops_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, server = Bytes(), Server(token(97, 1), token(98, 2), token(99, 3), end())
    loop, sampling = asyncio.get_running_loop(), Sampling(max_tokens=100)
    stream = LlamaStream(loop, tokenizer, PartialTokens(tokenizer), sampling)
    send = ThreadChannel.send

    def leaving(handover: ThreadChannel, item: Any) -> bool:
        stream.abort()
        return send(handover, item)

    monkeypatch.setattr(ThreadChannel, "send", leaving)
    await asyncio.to_thread(stream.run, server, lambda: b"{}")
    assert server.stopped_after == 1


async def test_chunks_before_a_failure_are_yielded() -> None:
    tokenizer = Bytes()
    sampling = Sampling(max_tokens=9)
    stream = LlamaStream(asyncio.get_running_loop(), tokenizer, PartialTokens(tokenizer), sampling)
    stream.run(Server(token(97, 1), {"error": {"message": "x"}}), lambda: b"{}")
    chunks = aiter(stream)
    assert (await anext(chunks)).ids == (97,)
    with pytest.raises(BackendError):
        await anext(chunks)


async def test_missing_finish_event_raises() -> None:
    with pytest.raises(BackendError, match="without an answer"):
        await read(Server(token(97, 1)))


async def test_stop_strings_stop_the_server_at_once() -> None:
    server = Server(*(token(ord(c), n) for n, c in enumerate("say STOP now", 1)), end())
    chunks = await read(server, Sampling(max_tokens=100, stop=("STOP",)))
    assert bytes(ids(chunks)) == b"say "
    assert (chunks[-1].finish, chunks[-1].stop_text) == ("stop", "STOP")
    assert server.stopped_after == len("say STOP")


async def test_partial_stop_string_is_released_at_the_end() -> None:
    server = Server(*(token(ord(c), n) for n, c in enumerate("say STO", 1)), end("stop"))
    chunks = await read(server, Sampling(max_tokens=100, stop=("STOP",)))
    assert (bytes(ids(chunks)), chunks[-1].finish) == (b"say STO", "stop")
    assert chunks[-1].stop_text is None


async def test_stop_ids_stop_the_server_at_once() -> None:
    server = Server(*(token(ord(c), n) for n, c in enumerate("abc", 1)), end())
    chunks = await read(server, Sampling(max_tokens=100, stop_ids=(98,)))
    assert (ids(chunks), chunks[-1].finish) == ([97, 98], "stop")
    assert server.stopped_after == 2


async def test_withheld_tokens_are_yielded_with_the_last_of_the_character() -> None:
    spelled = "🦄".encode()
    sampled = {"id": spelled[3], "logprob": -0.5, "top_logprobs": []}
    server = Server(
        token(97, 1, logprobs={"content": [{"id": 97, "logprob": -1.0}]}),
        token(spelled[3], 5, "🦄", logprobs={"content": [sampled]}),
        end(),
    )
    chunks = await read(server, Sampling(max_tokens=100, logprobs=0))
    token_entry = [logprob for chunk in chunks for logprob in chunk.logprobs]
    assert [each.id for each in token_entry] == ids(chunks) == [97, *spelled]
    assert [each.logprob for each in token_entry] == [-1.0, *[UNKNOWN_LOGPROB] * 3, -0.5]


async def test_abort_before_start_generates_nothing() -> None:
    tokenizer = Bytes()
    sampling = Sampling(max_tokens=9)
    stream = LlamaStream(asyncio.get_running_loop(), tokenizer, PartialTokens(tokenizer), sampling)
    server = Server(token(97, 1), end())
    stream.abort()
    stream.run(server, lambda: b"{}")
    assert stream.sampled == []


async def test_closed_event_loop_stops_the_thread_quietly() -> None:
    loop = asyncio.new_event_loop()
    tokenizer = Bytes()
    stream = LlamaStream(loop, tokenizer, PartialTokens(tokenizer), Sampling(max_tokens=9))
    loop.close()
    server = Server(token(97, 1), token(98, 2), end())
    stream.run(server, lambda: b"{}")
    assert server.stopped_after == 1
