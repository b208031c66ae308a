"""Turns with server-side tools: the overhead of a turn, and how much of its prompt is cached."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from antiphon.backends.base import Backend
from antiphon.tools.base import (
    AnyToolProvider,
    CallContext,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolResult,
    Toolset,
)
from antiphon.wire.items import Item, McpCall
from antiphon.wire.tools import Function

from .process import running
from .table import Line, median

TURNS = 10
TOOL: Any = {"type": "mcp", "server_label": "w", "server_url": "http://localhost/"}
#: Seconds of the bare tool: none, or those of a quick search.
TOOL_S = (0.0, 0.05)
_CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Tokyo")
_MODELS = Path(__file__).parents[1] / "tests" / "tiny_models"
_FUNCTION = Function(
    name="get_weather",
    description="Get the weather in a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
)


class Weather:
    """``ToolProvider`` of one function, which takes ``seconds``."""

    def __init__(self, seconds: float = 0) -> None:
        self._seconds = seconds

    def check(self, tool: Any, path: str) -> None: ...

    def leading_item(self, tool: Any, opening: ResponseContext) -> Item | None:
        return None

    @asynccontextmanager
    async def open(self, tool: Any, opening: ResponseContext) -> AsyncIterator[Toolset]:
        shell = McpCall(server_label="", name="get_weather", arguments="")
        yield Toolset(
            functions=(
                ToolFunction(
                    tool=_FUNCTION, initial_item=shell, handler=self.run, streams_text=True
                ),
            )
        )

    async def run(
        self, arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        await asyncio.sleep(self._seconds)
        yield ToolProgress("completed")
        yield ToolResult(text="sunny, 21 °C", fields={"output": "sunny, 21 °C"})


async def _bare(tool: Weather) -> float:
    """Return seconds per call of the tool itself."""
    context = CallContext(tenant="t", response_id="r", call_id="c", max_result_bytes=1000)
    started = time.perf_counter()
    for _ in range(TURNS):
        async with aclosing(tool.run("{}", context)) as steps:
            async for _ in steps:
                pass
    return (time.perf_counter() - started) / TURNS


def _calling(turns: int) -> Callable[[Any, Any], Any]:
    """Return the script of a model that calls ``turns`` times and then answers."""
    from antiphon.stream.deltas import Close, Open, Text
    from antiphon.wire.items import FunctionCall, FunctionCallOutput

    def script(conversation: Any, options: Any) -> Any:
        done = sum(isinstance(item, FunctionCallOutput) for item in conversation.items)
        if not options.tools or done >= turns:
            return "It is sunny."
        call = FunctionCall(call_id="", name="get_weather", arguments="")
        return [Open(call), Text('{"city": "Rome"}'), Close()]

    return script


def overhead() -> Iterator[Line]:
    """Measure a streamed response with ten calls in ten turns, subtract a response without calls,
    and compare the result with the tool itself."""

    def seconds(port: int, client: httpx.Client, tools: list[Any]) -> float:
        body = {"model": "scripted", "input": "hi", "stream": True, "tools": tools}
        url = f"http://127.0.0.1:{port}/v1/responses"
        started = time.perf_counter()
        answer = client.post(url, json=body)
        took = time.perf_counter() - started
        assert answer.text.count("response.mcp_call.completed") == 2 * TURNS * bool(tools)
        return took

    for wait in TOOL_S:
        with running("tools", str(wait)) as server, httpx.Client(timeout=60) as client:
            for _ in range(5):
                seconds(server.port, client, [TOOL])
            whole = median(seconds(server.port, client, [TOOL]) for _ in range(9))
            without = median(seconds(server.port, client, []) for _ in range(9))
        bare = asyncio.run(_bare(Weather(wait)))
        turn = (whole - without) / TURNS
        if wait:
            what = f"tools: a turn with a tool of {wait * 1000:.0f} ms"
            yield Line(what=what, value=turn / bare, unit="x bare", at_most=1.1)
        else:
            over = (turn - bare) * 1000
            yield Line(what="tools: a turn, besides its tool", value=over, unit="ms", at_most=3)


# --- the cache -----------------------------------------------------------------------------------


def cached() -> Iterator[Line]:
    """Cached tokens of turn n over all tokens of turn n - 1, for turns after a tool call.

    Tokens cached from other conversations do not count.
    """
    tiny: dict[str, Any] = {"max_output_tokens": 300}
    forced: dict[str, Any] = {
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 150,
    }
    stopped = {**forced, "max_tool_calls": 1}
    for what, kind, more in (
        ("the tiny model that calls tools", "tiny", tiny),
        ("SmolLM2, made to call", "smollm2", forced),
        ("SmolLM2, kept from calling again", "smollm2", stopped),
    ):
        shares: list[float] = []
        with running("tools", kind) as server, httpx.Client(timeout=120) as client:
            for city in _CITIES:
                body = {
                    "model": "model",
                    "input": f"What is the weather in {city}?",
                    "tools": [TOOL],
                    "temperature": 0,
                    "return_metrics": True,
                    **more,
                }
                url = f"http://127.0.0.1:{server.port}/v1/responses"
                answer = client.post(url, content=json.dumps(body)).json()
                shares += _shares(answer["metrics"])
        note = f"the least of {len(shares)} turns; {sum(shares) / len(shares):.1%} on average"
        what = f"tools: cached, {what}"
        yield Line(what=what, value=min(shares) * 100, unit="%", at_least=95, note=note)


def _shares(metrics: dict[str, Any]) -> Iterator[float]:
    read = metrics["input_tokens_per_turn"]
    wrote = metrics["output_tokens_per_turn"]
    remaining = metrics["cached_tokens_per_turn"]
    for at in range(1, len(read)):
        yield min(1.0, remaining[at] / (read[at - 1] + wrote[at - 1]))


def provider(kind: str) -> AnyToolProvider:
    """Return the tool provider of that kind of server."""
    return Weather() if kind in ("tiny", "smollm2") else Weather(float(kind))


async def backend(kind: str) -> Backend:
    """Return the backend of that kind of server."""
    from antiphon.backends.local.backend import LocalBackend
    from antiphon.backends.scripted_backend import ScriptedBackend
    from antiphon.dialects.chat.dialect import ChatDialect
    from antiphon.engines.base import LoadOptions
    from antiphon.engines.llama.engine import load
    from tests.real.embedded_model import smollm2

    if kind == "tiny":
        path = _MODELS / "tiny-tools" / "tiny-tools.gguf"
    elif kind == "smollm2":
        path = await asyncio.to_thread(smollm2)
    else:
        return ScriptedBackend(_calling(TURNS))
    engine = await load(path, LoadOptions(threads=1, parallel=1, context_size=2048))
    return LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer))
