"""``python -m bench [NAME…]``: measure, and print each number against its target."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

from antiphon.http.streaming import sse
from antiphon.stream.writer import ResponseWriter
from antiphon.wire.items import InputText, Message, OutputText
from antiphon.wire.response import Response, Usage

from . import (
    eventlogs,
    filesearch,
    filesearch_quality,
    fleet,
    growth,
    large_store,
    pgvector,
    ray,
    state,
    tools,
    upstreams,
)
from .claims import claims
from .constraints import constraints
from .decisions import decisions
from .default_server import default_server
from .engines import embedded, engines
from .instructions import instructions
from .kernel import kernel
from .llama_cost import llama_cost, many_streams
from .load import Plan, load
from .parsers import parsers
from .prefixes import prefixes
from .process import CONTEXT, FEW, WORDS, running
from .schemas import schemas
from .sizing import sizing
from .table import Line, median, show
from .workers import workers

Bench = Callable[[], Iterator[Line]]


def _body(**fields: object) -> str:
    return json.dumps({"model": "scripted", "input": "hi", **fields})


# --- the heart -----------------------------------------------------------------------------------


def heart() -> Iterator[Line]:
    """Compare the event writer, which turns deltas into the bytes of a stream, with code that only
    frames ready-made bytes."""
    count = 100_000

    def ours() -> float:
        out = ResponseWriter(
            Response(id="resp_1", created_at=1, model="m"), ids=lambda prefix: f"{prefix}_1"
        )
        out.create()
        out.start()
        item = out.open(Message(role="assistant", content=()))
        out.take()
        started = time.process_time()
        for _ in range(count):
            item.write("hello ")
            sse.frame_events(out.take())
        return (time.process_time() - started) / count * 1e6

    def ready() -> float:
        data = b'{"type":"response.output_text.delta","sequence_number":7,"delta":"hello "}'
        started = time.process_time()
        for _ in range(count):
            b"".join((b"event: response.output_text.delta\ndata: ", data, b"\n\n"))
        return (time.process_time() - started) / count * 1e6

    mine, theirs = median(ours() for _ in range(5)), median(ready() for _ in range(5))
    yield Line(what="heart: a delta to its bytes", value=mine, unit="µs", at_most=3)
    yield Line(what="heart: framing bytes that are ready made", value=theirs, unit="µs")


# --- the server ----------------------------------------------------------------------------------


def events() -> Iterator[Line]:
    """Compare the server's CPU time per event with a minimal app that sends the same bytes. Events
    are sent with pauses and without."""
    body = _body(stream=True, store=False)
    for streams, pace in ((32, 0.01), (256, 0.02), (1, 0.0), (32, 0.0), (256, 0.0)):
        count = streams if streams > 1 else 30
        spent: dict[str, list[float]] = {"ours": [], "bare": []}
        with (
            running("scripted", str(WORDS), str(pace)) as ours,
            running("bare", str(pace)) as bare,
        ):
            pair = (("ours", ours), ("bare", bare))
            for _ in range(3):
                for kind, server in pair:
                    before = server.cpu_s
                    result = load(
                        Plan(port=server.port, body=body, connections=streams, requests=count)
                    )
                    spent[kind].append((server.cpu_s - before) / result.events * 1e6)
        mine, floor = median(spent["ours"]), median(spent["bare"])
        rate = f"{1 / pace:.0f} events/s each" if pace else "flat out"
        what = f"server: CPU an event, {streams} streams, {rate}"
        note = f"{mine:.1f} to {floor:.1f} µs"
        yield Line(what=what, value=mine / floor, unit="x bare", at_most=1.3, note=note)


def requests() -> Iterator[Line]:
    """Short requests per second in one process, and its memory."""
    short = {"store": True}
    with running("scripted", str(FEW), "0") as server:
        for name, stream, target in (("plain", False, 2000), ("streamed", True, 1500)):
            body = _body(stream=stream, **short)
            plan = Plan(port=server.port, body=body, connections=16, requests=3000)
            load(plan)
            rate = median(plan.requests / load(plan).wall_s for _ in range(3))
            what = f"server: {name} requests a second, 16 connections, stored"
            yield Line(what=what, value=rate, unit="/s", at_least=target)
        rss = server.rss_bytes / 2**20
        yield Line(what="server: memory after that", value=rss, unit="MB", at_most=100)


def idle() -> Iterator[Line]:
    """Memory of a stream that waits for its first token."""
    streams = 200
    with running("scripted", str(FEW), "3600") as server:
        asyncio.run(_hold(server.port, 8, 0.5))
        before = server.rss_bytes
        after = asyncio.run(_hold(server.port, streams, 2.0, lambda: server.rss_bytes))
        value = (after - before) / streams / 1024
        yield Line(what="server: memory of an idle open stream", value=value, unit="KB", at_most=16)


async def _hold(
    port: int, streams: int, seconds: float, look: Callable[[], int] = lambda: 0
) -> int:
    body = _body(stream=True)
    head = (
        f"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()
    instructions = []
    for _ in range(streams):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        await reader.readuntil(b"response.in_progress")
        instructions.append(writer)
    await asyncio.sleep(seconds)
    observed = look()
    for writer in instructions:
        writer.close()
    return observed


# --- the model -----------------------------------------------------------------------------------

TOKENS = 48


def model() -> Iterator[Line]:
    """Compare tokens per second through the server with the engine alone. The rounds alternate."""
    body = json.dumps(
        {
            "model": "model",
            "input": "Tell me a long story about the sea.",
            "stream": True,
            "store": False,
            "temperature": 0,
            "max_output_tokens": TOKENS,
        }
    )
    for streams in (1, 4, 16):
        served: list[float] = []
        direct: list[float] = []
        with running("model", str(streams)) as server:
            plan = Plan(port=server.port, body=body, connections=streams, requests=streams)
            engine = asyncio.Runner()
            ask = engine.run(_direct(streams))
            engine.run(ask())
            load(plan)
            for _ in range(3):
                served.append(streams * TOKENS / load(plan).wall_s)
                direct.append(engine.run(ask()))
            engine.run(ask.close())
            engine.close()
        ratio = median(served) / median(direct)
        note = f"{median(served):.0f} to {median(direct):.0f} tokens/s"
        target = 0.97 if streams == 16 else None
        what = f"model: through the server, {streams} streams"
        yield Line(what=what, value=ratio, unit="x direct", at_least=target, note=note)


class _Direct:
    """The engine alone: runs ``streams`` generations at once and returns tokens per second."""

    def __init__(self, engine: object, prompt: object, streams: int) -> None:
        self.engine, self.prompt, self.streams = engine, prompt, streams

    async def __call__(self) -> float:
        from antiphon.engines.base import Sampling

        sampling = Sampling(max_tokens=TOKENS, temperature=0, top_p=1.0)

        async def one() -> None:
            async with aclosing(self.engine.generate(self.prompt, sampling)) as chunks:  # type: ignore[attr-defined]
                async for _ in chunks:
                    pass

        started = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(self.streams)))
        return self.streams * TOKENS / (time.perf_counter() - started)

    async def close(self) -> None:
        await self.engine.close()  # type: ignore[attr-defined]


async def _direct(streams: int) -> _Direct:
    from antiphon.dialects.chat.dialect import ChatDialect
    from antiphon.engines.base import LoadOptions
    from antiphon.engines.llama.engine import load as load_engine
    from antiphon.inference.conversation import Conversation, Options
    from tests.real.embedded_model import smollm2

    path = await asyncio.to_thread(smollm2)
    engine = await load_engine(path, LoadOptions(threads=1, parallel=streams, context_size=CONTEXT))
    messages = Message(
        role="user", content=(InputText(text="Tell me a long story about the sea."),)
    )
    rendered = ChatDialect(engine.card, engine.tokenizer).render(
        Conversation(items=(messages,)), Options()
    )
    return _Direct(engine, rendered.prompt, streams)


# Instructions of every request: about 170 tokens, computed once.
INSTRUCTIONS = """You are the assistant of a small museum by the sea. Visitors write to you from
their phones, often in a hurry, sometimes with children beside them. Answer in one or two short
sentences and in plain words. Never invent opening hours, prices or names: if you are not told
them, say that the desk at the entrance knows. When somebody asks about a room, say what stands in
it and how long a visit takes. When somebody asks about a number, a year or a name, say one thing
about it that a child would remember. Do not use lists, headings or emphasis. Do not repeat the
question. If a visitor is rude, stay kind and brief; if a visitor is in danger, tell them to find
the nearest guard at once."""


def turns() -> Iterator[Line]:
    """Compare the first-token latency of a late turn with the first turn. This shows the effect of
    the prefix cache."""
    import httpx

    first: list[float] = []
    cached = given = 0
    with running("model", "1") as server, httpx.Client(timeout=120) as client:
        url = f"http://127.0.0.1:{server.port}/v1/responses"
        previous: str | None = None
        for turn in range(51):
            output = f"Say one thing about the number {turn}."
            body = {"model": "model", "input": output, "stream": True, "max_output_tokens": 12}
            body |= {"instructions": INSTRUCTIONS}
            started = time.perf_counter()
            body |= {"temperature": 0, "previous_response_id": previous}
            with client.stream("POST", url, json=body) as answer:
                is_first_seen = False
                for line in answer.iter_lines():
                    if not is_first_seen and line.startswith("event: response.output_text.delta"):
                        is_first_seen = True
                        first.append(time.perf_counter() - started)
                    if line.startswith("data: {") and '"response":{' in line:
                        last = json.loads(line[6:])["response"]
            previous = last["id"]
            cached = last["usage"]["input_tokens_details"]["cached_tokens"]
            given = last["usage"]["input_tokens"]
    second, late = median(first[1:4]), median(first[-3:])
    stored = f"{cached} of {given} tokens were kept"
    for what, early, limit in (("turn 1", first[0], 1.3), ("turns 2 to 4", second, None)):
        yield Line(
            what=f"model: first token of turn 50 against {what}",
            value=late / early,
            unit="x",
            at_most=limit,
            note=f"{late * 1000:.0f} to {early * 1000:.0f} ms; {stored}",
        )


# --- the store -----------------------------------------------------------------------------------


def store() -> Iterator[Line]:
    """Measure saves per second, and compare the cost of a late turn with the cost of an early
    turn."""
    with tempfile.TemporaryDirectory() as folder:
        yield from asyncio.run(_store(Path(folder) / "bench.db"))


async def _store(path: Path) -> list[Line]:
    from antiphon.store.records import StoredResponse, TurnTokens
    from antiphon.store.sqlite.store import SqliteStore

    def made(number: int, previous: str | None) -> StoredResponse:
        messages = Message(
            id=f"msg_o{number}", role="assistant", content=(OutputText(text="x" * 200),)
        )
        request = Message(id=f"msg_i{number}", role="user", content=(InputText(text="y" * 100),))
        response = Response(
            id=f"resp_{number}",
            created_at=number,
            model="m",
            status="completed",
            output=(messages,),
            usage=Usage(),
            previous_response_id=previous,
        )
        tokens = TurnTokens(base=0, ids=b"1234" * 80, fingerprint="f")
        return StoredResponse(response=response, input=(request,), tokens=tokens)

    store = await SqliteStore.open(path)
    each = 400

    async def caller(first: int) -> None:
        for number in range(first, first + each):
            await store.save("t", made(number, None))

    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller(n * each) for n in range(16)))
    rate = 16 * each / (time.perf_counter() - started)
    spent = (time.process_time() - cpu) / (16 * each) * 1e6
    previous: str | None = None
    loads: dict[int, float] = {}
    for turn in range(1, 501):
        stored = made(1_000_000 + turn, previous)
        await store.save("t", stored)
        previous = stored.response.id
        if turn in (5, 500):
            started = time.perf_counter()
            for _ in range(20):
                await store.load_chain("t", previous)
            loads[turn] = (time.perf_counter() - started) / 20 * 1000
    await store.close()
    return [
        Line(what="store: saves a second, 16 at once", value=rate, unit="/s"),
        Line(what="store: CPU a save", value=spent, unit="µs", at_most=120),
        Line(what="store: reading a chain of 5 turns", value=loads[5], unit="ms"),
        Line(what="store: reading a chain of 500 turns", value=loads[500], unit="ms"),
    ]


BENCHES: dict[str, Bench] = {
    "heart": heart,
    "parsers": parsers,
    "prefixes": prefixes,
    "default_server": default_server,
    "decisions": decisions,
    "llama_cost": llama_cost,
    "many_streams": many_streams,
    "constraints": constraints,
    "schemas": schemas,
    "store": store,
    "events": events,
    "requests": requests,
    "instructions": instructions,
    "idle": idle,
    "model": model,
    "engines": engines,
    "embedded": embedded,
    "turns": turns,
    "tools": tools.overhead,
    "tools_cached": tools.cached,
    "upstream": upstreams.chat,
    "upstream_first": upstreams.first_token,
    "kernel": kernel,
    "filesearch": filesearch.speed,
    "filesearch_quality": filesearch_quality.quality,
    "pgvector": pgvector.pgvector,
    "fleet": fleet.cached,
    "fleet_failover": fleet.failover,
    "ray": ray.ray,
    "long": state.turns,
    "growth": growth.exponents,
    "turn_50": growth.turn_50,
    "appends": state.appends,
    "followers": state.followers,
    "listeners": eventlogs.listeners,
    "commits": eventlogs.commits,
    "claims": claims,
    "large_store": large_store.large_store,
    "many": state.many,
    "takeover": state.takeover,
    "workers": workers,
    "sizing": sizing,
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        raise SystemExit(f"{__doc__}\nNames: {', '.join(BENCHES)}")
    for name in names or BENCHES:
        show(BENCHES[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
