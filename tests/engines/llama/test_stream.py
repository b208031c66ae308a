"""The stream of events that no model would send."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from antiphon.engines.base import Sampling
from antiphon.engines.common.logprobs import UNKNOWN_LOGPROB
from antiphon.engines.llama.partial_tokens import PartialTokens
from antiphon.engines.llama.stream import LlamaStream
from antiphon.errors import BackendError
from antiphon.inference.tokens import Chunk

from .test_partial_tokens import Bytes


class Server:
    """Sends its events to a stream; ``stopped_after`` tells how many were needed."""

    def __init__(self, *events: Any) -> None:
        self.events = events
        self.stopped_after: int | None = None

    def run(self, stream: LlamaStream) -> None:
        for number, event in enumerate(self.events, 1):
            if isinstance(event, Exception):
                stream.end(event)
                return
            if stream.feed(event if isinstance(event, bytes) else json.dumps(event).encode()):
                self.stopped_after = number
                break
        stream.end()


def token(id: int, number: int, text: str | None = None, **more: Any) -> dict[str, Any]:
    content = chr(id) if text is None else text
    return {"content": content, "tokens": [id], "tokens_predicted": number, "stop": False, **more}


def end(reason: str = "limit", predicted: int = 0) -> dict[str, Any]:
    return {"tokens": [], "tokens_predicted": predicted, "stop": True, "stop_type": reason}


def new_stream(sampling: Sampling | None = None) -> LlamaStream:
    tokenizer = Bytes()
    return LlamaStream(tokenizer, PartialTokens(tokenizer), sampling or Sampling(max_tokens=100))


async def read(server: Server, sampling: Sampling | None = None) -> list[Chunk]:
    stream = new_stream(sampling)
    server.run(stream)
    return [chunk async for chunk in stream]


def ids(chunks: Iterable[Chunk]) -> list[int]:
    return [id for chunk in chunks for id in chunk.ids]


async def test_chunks_before_the_first_read_are_merged() -> None:
    progress = {"tokens": [0], "prompt_progress": {"cache": 3}}
    server = Server(progress, progress, token(97, 1), token(98, 2), end())
    assert await read(server) == [Chunk((97, 98), finish="length", cached_tokens=3)]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"error": {"code": 500, "message": "out of memory"}}, "out of memory"),
        (b"not json", "malformed"),
        ({"tokens": 5}, "Expected `array`"),
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


async def test_abort_stops_the_server_at_the_next_event() -> None:
    stream, server = new_stream(), Server(token(98, 2), token(99, 3), end())
    assert not stream.feed(json.dumps(token(97, 1)).encode())
    stream.abort()
    server.run(stream)
    assert server.stopped_after == 1 and stream.sampled == [97]


async def test_chunks_before_a_failure_are_yielded() -> None:
    stream = new_stream()
    Server(token(97, 1), {"error": {"message": "x"}}).run(stream)
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
    server = Server(*(token(ord(c), n) for n, c in enumerate("say STO", 1)), end("eos"))
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
        token(97, 1, completion_probabilities=[{"id": 97, "logprob": -1.0}]),
        token(spelled[3], 5, "🦄", completion_probabilities=[sampled]),
        end(),
    )
    chunks = await read(server, Sampling(max_tokens=100, logprobs=0))
    token_entry = [logprob for chunk in chunks for logprob in chunk.logprobs]
    assert [each.id for each in token_entry] == ids(chunks) == [97, *spelled]
    assert [each.logprob for each in token_entry] == [-1.0, *[UNKNOWN_LOGPROB] * 3, -0.5]


async def test_abort_before_the_first_event_generates_nothing() -> None:
    stream = new_stream()
    stream.abort()
    Server(token(97, 1), end()).run(stream)
    assert stream.sampled == []
    with pytest.raises(BackendError, match="aborted"):
        await anext(aiter(stream))
