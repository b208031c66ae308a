"""Fleets of engines: two llama-servers behind vllm-router, behind SMG, and without a router.

``VLLM_ROUTER`` and ``SMG`` name the programs of the routers; without one, its part is left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from .fleet_processes import (
    QUICK_CHECKS,
    ROUTERS,
    WORDS,
    Engine,
    router_program,
    running_engines,
    running_router,
)
from .table import Line

_ROOT = Path(__file__).parents[1]
_CONVERSATIONS, _TURNS, _CONCURRENT = 50, 10, 8
_STREAMS, _KILLS = 32, 12
_WAIT_S = 300
_SETTINGS = """port = 0
host = "127.0.0.1"
log_level = "error"
stall_log_ms = 0
sandbox.kind = "off"
ui = "off"
[models.fleet]
context_size = 1024
{model}
"""
_LIST = ROUTERS["vllm-router"].engine


@contextmanager
def _antiphon(model: str) -> Iterator[str]:
    """Start a server with this model and yield its address."""
    with tempfile.TemporaryDirectory() as folder:
        settings = f'store = "sqlite:{folder}/bench.db"\n{_SETTINGS.format(model=model)}'
        (Path(folder) / "antiphon.toml").write_text(settings)
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "antiphon", "serve"],
                cwd=folder,
                env={**os.environ, "HOME": folder, "PYTHONPATH": str(_ROOT)},
                stderr=log,
            )
            try:
                yield _announced_url(Path(log.name))
            finally:
                process.terminate()
                process.wait(_WAIT_S)


def _announced_url(log: Path) -> str:
    """Wait for the server's address in its log."""
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        if (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())) is not None:
            return found[0]
        time.sleep(0.05)
    raise RuntimeError("the server did not start")


# --- the prefix cache ----------------------------------------------------------------------------


def cached() -> Iterator[Line]:
    """Measure how large a share of the reusable prompt tokens the engines had in their cache, with
    the session's key and without it."""
    with running_engines() as engines:
        urls = [engine.url for engine in engines]
        for name, row in ROUTERS.items():
            if router_program(name) is None:
                continue
            counts = []
            for setting in (f'router = "{row.setting}"', ""):
                with (
                    running_router(name, urls) as url,
                    _antiphon(f'source = "{url}/v1"\n{setting}\n{row.engine}') as server,
                ):
                    counts.append(asyncio.run(_cached(server)))
            yield _share_line(f"behind {name}", *counts)
        with _antiphon(f"source = {json.dumps([f'{url}/v1' for url in urls])}\n{_LIST}") as server:
            yield _share_line("with a list of URLs", asyncio.run(_cached(server)))


class _Cached(Struct):
    """Tokens of prompts: that could be cached, that were cached, and that were computed."""

    reusable: int = 0
    cached: int = 0
    computed: int = 0


def _share_line(where: str, found: _Cached, without: _Cached | None = None) -> Line:
    note = f"{found.computed:,} tokens computed"
    if without is not None:
        share = without.cached / without.reusable
        note += f"; without the key {share:.1%} cached, {without.computed:,} computed"
    what = f"fleet: reusable tokens cached, {where}"
    value = found.cached / found.reusable * 100
    return Line(what=what, value=value, unit="%", at_least=95, note=note)


async def _cached(server: str) -> _Cached:
    """Hold all conversations, some at a time. A turn can reuse the prompt of the turn before: the
    tiny model reasons first, and is not shown its old reasoning, so its answers have moved."""
    slots, counts = asyncio.Semaphore(_CONCURRENT), _Cached()

    async def converse(number: int, client: Any) -> None:
        words, previous, known = random.Random(number), None, 0
        for _ in range(_TURNS):
            body = {
                "model": "fleet",
                "input": " ".join(words.choices(WORDS, k=12)),
                "previous_response_id": previous,
                "temperature": 0,
                "max_output_tokens": 16,
            }
            async with slots:
                answer = await client.post("/v1/responses", json=body)
            answer.raise_for_status()
            response = answer.json()
            usage = response["usage"]
            cached = usage["input_tokens_details"]["cached_tokens"]
            counts.cached += min(cached, known)
            counts.reusable += known
            counts.computed += usage["input_tokens"] - cached
            previous, known = response["id"], usage["input_tokens"]

    async with _client(server) as client:
        await asyncio.gather(*(converse(number, client) for number in range(_CONVERSATIONS)))
    return counts


@asynccontextmanager
async def _client(server: str) -> AsyncIterator[Any]:
    import httpx

    async with httpx.AsyncClient(base_url=server, timeout=300) as client:
        yield client


# --- engines that die ----------------------------------------------------------------------------


def failover() -> Iterator[Line]:
    """Kill the engines of streams at random moments. Count how many streams fail, and how many have
    another text than streams without kills."""
    for name in ("vllm-router", ""):
        if name and router_program(name) is None:
            continue
        with ExitStack() as stack:
            engines = stack.enter_context(running_engines())
            urls = [engine.url for engine in engines]
            if name:
                url = stack.enter_context(running_router(name, urls, *QUICK_CHECKS))
                source = f'source = "{url}/v1"\nrouter = "{name}"'
            else:
                source = f"source = {json.dumps([f'{url}/v1' for url in urls])}"
            server = stack.enter_context(_antiphon(f"{source}\n{_LIST}"))
            result = asyncio.run(_disturb(server, engines))
        where = f"behind {name}" if name else "with a list of URLs"
        yield Line(
            what=f"fleet: failed replies {where}",
            value=result.failed,
            unit="",
            at_most=0,
            note=f"of {result.replies}, while engines were killed {_KILLS} times",
        )
        yield Line(
            what=f"fleet: replies with another text {where}",
            value=result.different / result.replies * 100,
            unit="%",
            note=f"{result.noise:.1%} without kills: llama.cpp rounds by batches",
        )


class _Disturbed(Struct):
    """Numbers of replies: all, failed ones, and ones with another text than without kills.
    ``noise``: the share of replies whose text differs even without kills."""

    replies: int = 0
    failed: int = 0
    different: int = 0
    noise: float = 0.0


async def _disturb(server: str, engines: Sequence[Engine]) -> _Disturbed:
    result, chance, is_over = _Disturbed(), random.Random(1), asyncio.Event()
    async with _client(server) as client:
        numbers = range(_STREAMS)
        expected = [await _reply(client, number) for number in numbers]
        undisturbed = [
            await asyncio.gather(*(_reply(client, number) for number in numbers)) for _ in range(3)
        ]
        texts = [pair for replies in undisturbed for pair in zip(replies, expected, strict=True)]
        result.noise = sum(text != other for text, other in texts) / len(texts)

        async def stream(number: int) -> None:
            while not is_over.is_set():
                text = await _reply(client, number)
                result.replies += 1
                result.failed += text is None
                result.different += text is not None and text != expected[number]

        streams = [asyncio.create_task(stream(number)) for number in numbers]
        try:
            for _ in range(_KILLS):
                await asyncio.sleep(chance.uniform(1, 6))
                victim = chance.choice(engines)
                await asyncio.to_thread(victim.kill)
                await asyncio.sleep(chance.uniform(0, 1))
                await asyncio.to_thread(victim.start)
        finally:
            is_over.set()
            await asyncio.gather(*streams)
    return result


async def _reply(client: Any, number: int) -> str | None:
    """Stream a reply and return its text. Returns None if the reply failed."""
    body = {
        "model": "fleet",
        "input": f"What is {number % 8} plus {number // 8}?",
        "stream": True,
        "store": False,
        "temperature": 0,
        "ignore_eos": True,
        "max_output_tokens": 150,
    }
    text: list[str] = []
    last: dict[str, Any] = {}
    async with client.stream("POST", "/v1/responses", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                last = json.loads(line[6:])
                if last["type"] == "response.output_text.delta":
                    text.append(last["delta"])
    if last.get("type") != "response.incomplete":  # it has used up its tokens
        sys.stderr.write(json.dumps(last)[:600] + "\n")
        return None
    return "".join(text)
