"""How the cost of work grows with its size: CPU time of servers whose engine costs nothing.

They render, tokenize, parse, stream and store as for the default model, with its template and its
vocabulary. Each size has a server of its own, and they are measured in turns: on a shared machine,
the CPU time of unchanged work varies. An exponent of 1 is linear growth.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

from msgspec import Struct

from antiphon.engines.base import Capabilities, Engine, Sampling
from antiphon.inference.tokens import Chunk, ModelCard, Prompt, Tokenizer

from .process import Process, running
from .table import Line, median

#: The name of the embedding model.
DOCUMENTS = "documents"
#: Models: one whose context holds everything, one whose context a conversation exceeds, and one
#: that pauses after each step of its output.
_LARGE, _SMALL, _PACED = "large", "small", "paced"
_LARGE_CONTEXT, _SMALL_CONTEXT = 1 << 20, 2048
#: Tokens of a step, and the pause after it in seconds.
_STEP, _PAUSE_S = 100, 0.02
#: Tokens of most answers.
_SHORT = 8
_PAGE = 100
_MAX_EXPONENT, _MAX_RATIO = 1.1, 1.2
_ROUNDS = 5
#: Tokens of the prompt of turn 50.
_PROMPT = 100_000
#: Turns that are compared, around the fifth and the fiftieth.
_EARLY, _LATE = range(3, 8), range(48, 53)
_WORDS = "the sea is blue and a small boat sails to an island with green trees by noon".split()


# --- the server ----------------------------------------------------------------------------------


class _Engine:
    """``Engine`` that samples as many tokens as it may at once, or in steps with pauses."""

    capabilities = Capabilities(
        max_logprobs=20, constraints=True, cached_tokens=True, seed=True, penalties=True
    )

    def __init__(self, tokenizer: Tokenizer, card: ModelCard, pause_s: float = 0) -> None:
        self.tokenizer, self.card = tokenizer, card
        self._pause_s = pause_s
        self._ids = tuple(tokenizer.encode(" " + " ".join(_WORDS), special=False))

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        for number in range(sampling.max_tokens):
            if number % _STEP == 0:
                await asyncio.sleep(self._pause_s)
            yield Chunk((self._ids[number % len(self._ids)],))
        yield Chunk(finish="stop")

    async def close(self) -> None: ...


async def models() -> Any:
    """Return the catalog of the measured server."""
    from antiphon.backends.local.backend import LocalBackend
    from antiphon.backends.reading import EmbeddingBackend
    from antiphon.dialects.chat.dialect import ChatDialect
    from antiphon.engines.gguf.model_card import gguf_card
    from antiphon.engines.gguf.reader import read_gguf
    from antiphon.engines.llama.tokenizer import LlamaTokenizer
    from antiphon.models.catalog import Catalog, ServedModel
    from tests.fakes.embedder import WordEmbedder
    from tests.real.embedded_model import smollm2

    path = await asyncio.to_thread(smollm2)
    head, tokenizer = read_gguf(path), LlamaTokenizer(path)

    def served(name: str, context: int, pause_s: float = 0) -> ServedModel:
        card = gguf_card(name, context, head, tokenizer)
        engine: Engine = _Engine(tokenizer, card, pause_s)
        backend = LocalBackend(engine, ChatDialect(card, tokenizer))
        return ServedModel(name=name, backend=backend, created=0)

    embedding = EmbeddingBackend(DOCUMENTS, WordEmbedder(64))
    return Catalog(
        (
            served(_LARGE, _LARGE_CONTEXT),
            served(_SMALL, _SMALL_CONTEXT),
            served(_PACED, _LARGE_CONTEXT, _PAUSE_S),
            ServedModel(name=DOCUMENTS, backend=embedding, created=0),
        )
    )


class _Client:
    """A client of one server over one connection."""

    def __init__(self, server: Process) -> None:
        self.server = server
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        self._random = random.Random(1)

    def words(self, count: int) -> str:
        """Return a text of about ``count`` tokens that is new."""
        return " ".join(self._random.choices(_WORDS, k=count))

    def request(self, method: str, path: str, body: Any = None, kind: str = "") -> bytes:
        """Return the body of the answer. ``body``: bytes of media type ``kind``, or JSON."""
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"content-type": kind or "application/json"}
        try:
            self._connection.request(method, f"/v1/{path}", sent, headers)
            answer = self._connection.getresponse()
        except ConnectionError:  # the server closes connections that are idle for long
            self._connection.close()
            self._connection.request(method, f"/v1/{path}", sent, headers)
            answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {content[:500]!r}")
        return content

    def post(self, path: str, **body: Any) -> Any:
        return json.loads(self.request("POST", path, body))

    def get(self, path: str) -> Any:
        return json.loads(self.request("GET", path))

    def respond(self, text: Any, **fields: Any) -> Any:
        """Return a response to ``text``, by default a short one."""
        body = {"model": _LARGE, "input": text, "max_output_tokens": _SHORT, **fields}
        return self.post("responses", **body)

    def upload(self) -> str:
        """Upload a file and return its id."""
        parts = (
            '--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nassistants\r\n'
            '--x\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n'
            f"content-type: text/plain\r\n\r\n{self.words(50)}\r\n--x--\r\n"
        )
        kind = "multipart/form-data; boundary=x"
        uploaded: str = json.loads(self.request("POST", "files", parts.encode(), kind))["id"]
        return uploaded

    def pages(self, path: str, count: int) -> None:
        """Read ``count`` entries of a list, page by page."""
        after = ""
        for _ in range(count // _PAGE):
            page = self.get(f"{path}?limit={_PAGE}{after}")
            assert len(page["data"]) == _PAGE
            after = f"&after={page['last_id']}"


# --- exponents -----------------------------------------------------------------------------------

#: Does work of a size, with what was prepared for it.
_Work = Callable[[_Client, int, Any], None]


class _Growth(Struct, frozen=True, kw_only=True):
    """A kind of work that is measured at three sizes. ``prepare`` creates the objects that the work
    needs. It is not measured."""

    what: str
    sizes: tuple[int, int, int]
    work: _Work
    prepare: Callable[[_Client, int], Any] = lambda client, size: None
    rounds: int = _ROUNDS


def _messages(client: _Client, count: int, words: int = 12) -> list[Any]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": client.words(words)} for n in range(count)]


def _calls(client: _Client, count: int) -> list[Any]:
    items: list[Any] = [{"role": "user", "content": client.words(12)}]
    for n in range(count // 2):
        call = {"call_id": f"call_{n}", "name": "look", "arguments": '{"place": "island"}'}
        items.append({"type": "function_call", **call})
        output = client.words(12)
        items.append({"type": "function_call_output", "call_id": f"call_{n}", "output": output})
    return items


def _tools(count: int) -> list[Any]:
    schema = {
        "type": "object",
        "properties": {"place": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["place", "count"],
        "additionalProperties": False,
    }
    return [
        {"type": "function", "name": f"tool_{n}", "description": "Looks.", "parameters": schema}
        for n in range(count)
    ]


def _stream(client: _Client, size: int, _: Any) -> None:
    body = {"model": _LARGE, "input": client.words(12), "max_output_tokens": size, "stream": True}
    assert b"response.completed" in client.request("POST", "responses", body)


def _chain(client: _Client, size: int) -> list[Any]:
    """Create a chain of ``size`` responses. Returns a list with the id of its last response."""
    last: list[Any] = [None]
    for _ in range(size):
        _continue(client, size, last)
    return last


def _continue(client: _Client, _: int, last: list[Any]) -> None:
    last[0] = client.respond(client.words(12), previous_response_id=last[0])["id"]


def _conversation(client: _Client, size: int, words: int = 12) -> str:
    """Create a conversation of ``size`` items with ``words`` words each, and return its id."""
    created: str = client.post("conversations")["id"]
    for _ in range(size // 20):
        client.post(f"conversations/{created}/items", items=_messages(client, 20, words))
    return created


def _conversation_pages(client: _Client, size: int, name: str) -> None:
    client.pages(f"conversations/{name}/items", size)


def _input_pages(client: _Client, size: int, names: list[str]) -> None:
    client.pages(f"responses/{names.pop()}/input_items", size)


def _large_inputs(client: _Client, size: int) -> list[str]:
    """Create a response with so many input items for each round: later pages of one are cached."""
    messages = _messages(client, size)
    return [client.respond(messages)["id"] for _ in range(_ROUNDS + 1)]


def _responses(client: _Client, size: int) -> None:
    for _ in range(size):
        client.respond("hi")


def _files(client: _Client, size: int) -> list[str]:
    return [client.upload() for _ in range(size)]


def _index(client: _Client, size: int, files: list[str]) -> str:
    """Index files in a new vector store and return its id."""
    name: str = client.post("vector_stores")["id"]
    for first in range(0, size, _PAGE):
        client.post(f"vector_stores/{name}/file_batches", file_ids=files[first : first + _PAGE])
    last = f"vector_stores/{name}/files/{files[-1]}"  # they are indexed in order
    while client.get(last)["status"] == "in_progress":
        time.sleep(0.2)
    return name


def _vector_store(client: _Client, size: int) -> str:
    return _index(client, size, _files(client, size))


def _search(client: _Client, size: int, name: str) -> None:
    for _ in range(10):
        client.post(f"vector_stores/{name}/search", query=client.words(4))


def _poll(client: _Client, size: int, _: Any) -> None:
    """Poll a background run of ``size`` tokens about once a step."""
    fields = {"model": _PACED, "background": True, "max_output_tokens": size}
    name = client.respond("hi", **fields)["id"]
    while client.get(f"responses/{name}")["status"] in ("queued", "in_progress"):
        time.sleep(_PAUSE_S)


_GROWTH = (
    _Growth(
        what="input items, messages",
        sizes=(256, 1024, 4096),
        work=lambda client, size, _: client.respond(_messages(client, size)),
    ),
    _Growth(
        what="input items, calls and outputs",
        sizes=(256, 1024, 4096),
        work=lambda client, size, _: client.respond(_calls(client, size)),
    ),
    _Growth(
        what="tools",
        sizes=(64, 256, 1024),
        work=lambda client, size, _: client.respond("hi", tools=_tools(size)),
    ),
    _Growth(what="output length", sizes=(1000, 4000, 16_000), work=_stream),
    _Growth(
        what="chain length, a turn",
        sizes=(50, 200, 800),
        prepare=_chain,
        work=_continue,
        rounds=4 * _ROUNDS,
    ),
    _Growth(
        what="files in a vector store, indexing",
        sizes=(100, 400, 1600),
        prepare=_files,
        work=_index,
        rounds=2,
    ),
    _Growth(
        what="files in a vector store, search",
        sizes=(100, 400, 1600),
        prepare=_vector_store,
        work=_search,
    ),
    _Growth(
        what="pages of files in a vector store",
        sizes=(100, 400, 1600),
        prepare=_vector_store,
        work=lambda client, size, name: client.pages(f"vector_stores/{name}/files", size),
    ),
    _Growth(
        what="pages of files",
        sizes=(100, 400, 1600),
        prepare=_files,
        work=lambda client, size, _: client.pages("files", size),
    ),
    _Growth(
        what="pages of a conversation",
        sizes=(500, 2000, 8000),
        prepare=_conversation,
        work=_conversation_pages,
    ),
    _Growth(
        what="pages of input items",
        sizes=(500, 2000, 8000),
        prepare=_large_inputs,
        work=_input_pages,
    ),
    _Growth(
        what="pages of responses",
        sizes=(100, 400, 1600),
        prepare=_responses,
        work=lambda client, size, _: client.pages("responses", size),
    ),
    _Growth(
        what="a background run, polled every 100 tokens",
        sizes=(1000, 4000, 16_000),
        work=_poll,
        rounds=2,
    ),
)


def exponents() -> Iterator[Line]:
    """Measure how costs grow with size (the exponents), and compare a turn of a long conversation
    with a turn of a short one."""
    with ExitStack() as stack:
        clients = [_Client(stack.enter_context(running("growth"))) for _ in range(3)]
        for growth in _GROWTH:
            yield _exponent(growth, clients)
        yield _long_conversation(clients[:2])


def _exponent(growth: _Growth, clients: list[_Client]) -> Line:
    """The exponent between the two larger sizes: at small ones, much of the cost is fixed."""
    pairs = tuple(zip(growth.sizes, clients, strict=True))
    prepared = [growth.prepare(client, size) for size, client in pairs]
    costs: list[list[float]] = [[] for _ in pairs]
    for turn in range(growth.rounds + 1):
        for (size, client), state, cost in zip(pairs, prepared, costs, strict=True):
            before = client.server.cpu_s
            growth.work(client, size, state)
            if turn:  # the first round warms up
                cost.append(client.server.cpu_s - before)
    spent = [min(cost) for cost in costs]
    value = math.log(spent[2] / spent[1]) / math.log(growth.sizes[2] / growth.sizes[1])
    note = ", ".join(
        f"{size:,}: {cost * 1e3:,.1f} ms" for size, cost in zip(growth.sizes, spent, strict=True)
    )
    what = f"exponent: {growth.what}"
    return Line(what=what, value=value, unit="", at_most=_MAX_EXPONENT, note=note)


def _long_conversation(clients: list[_Client]) -> Line:
    """A turn of a conversation of 20,000 items against one of 100. Both are longer than what a
    turn reads, which is three contexts."""
    sizes = (100, 20_000)
    costs: list[list[float]] = [[], []]
    pairs = zip(clients, sizes, strict=True)
    names = [_conversation(client, size, words=100) for client, size in pairs]
    for _ in range(2 * _ROUNDS):
        for client, name, cost in zip(clients, names, costs, strict=True):
            fields = {"model": _SMALL, "conversation": name, "truncation": "auto"}
            before = client.server.cpu_s
            client.respond(client.words(100), **fields)
            cost.append(client.server.cpu_s - before)
    early, late = map(median, costs)
    return Line(
        what="a turn at 20,000 items against one at 100",
        value=late / early,
        unit="x",
        at_most=_MAX_RATIO,
        note=f"{late * 1e3:.1f} to {early * 1e3:.1f} ms",
    )


# --- late turns ----------------------------------------------------------------------------------


def turn_50() -> Iterator[Line]:
    """A turn that extends a prompt of 100,000 tokens, and turn 50 against turn 5 of chains whose
    prompts have that size from their first turn on, or at their fiftieth."""
    turns = _LATE.stop
    with ExitStack() as stack:
        client = _Client(stack.enter_context(running("growth")))
        for what, first, each in (
            ("100k tokens from turn 1 on", _PROMPT, 12),
            ("100k tokens at turn 50", _PROMPT // 50, _PROMPT // 50 - 2 * _SHORT),
            ("short turns", 12, 12),
        ):
            yield _late_turn(client, what, (first, *[each] * turns))


def _late_turn(client: _Client, what: str, lengths: tuple[int, ...]) -> Line:
    costs: list[list[float]] = [[] for _ in lengths]
    for _ in range(_ROUNDS):
        previous, tokens = None, 0
        for cost, length in zip(costs, lengths, strict=True):
            before = client.server.cpu_s
            text = client.words(length)
            response = client.respond(text, previous_response_id=previous)
            cost.append(client.server.cpu_s - before)
            previous, tokens = response["id"], response["usage"]["input_tokens"]
    whole, early, late = (
        median(min(costs[turn]) for turn in turns) for turns in (range(1), _EARLY, _LATE)
    )
    return Line(
        what=f"turn 50 against turn 5, {what}",
        value=late / early,
        unit="x",
        at_most=_MAX_RATIO,
        note=f"{late * 1e3:.1f} to {early * 1e3:.1f} ms; turn 1 {whole * 1e3:.1f}, {tokens:,} ids",
    )
