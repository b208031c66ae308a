"""Measure the cost of a grammar per token: the real engine with and without a grammar, in the same
run."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

from .table import Line, median

_TOKENS, _TIMES = 128, 5
_SCHEMA = {
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"type": "string"}, "minItems": 60}},
    "required": ["lines"],
    "additionalProperties": False,
}
_GRAMMARS = {
    "any text": "start: /(?s:.*)/",
    "a JSON schema": f"start: %json {json.dumps(_SCHEMA)}",
    "thinking, then a choice": 'start: /(?s:.*)/ "</think>" ("yes" | "no")',
}


def constraints() -> Iterator[Line]:
    """Measure how much more time a token needs with a constraint than without."""
    took = asyncio.run(_measure())
    free = median(took.pop("free"))
    for name, times in took.items():
        yield Line(
            what=f"constraint, a token: {name}",
            value=(median(times) - free) * 1e6,
            unit="µs",
            note=f"beside {free * 1e6:,.0f} µs of the 135M model for a free token",
        )


async def _measure() -> dict[str, list[float]]:
    """Return seconds per token by grammar; rounds alternate between the grammars."""
    from antiphon.engines.base import LoadOptions
    from antiphon.engines.llama.engine import load
    from tests.real.embedded_model import smollm2

    engine = await load(
        await asyncio.to_thread(smollm2), LoadOptions(threads=1, parallel=1, context_size=1024)
    )
    took: dict[str, list[float]] = {"free": [], **{name: [] for name in _GRAMMARS}}
    try:
        for name in took:
            await _once(engine, _GRAMMARS.get(name))
        for _ in range(_TIMES):
            for name, times in took.items():
                times.append(await _once(engine, _GRAMMARS.get(name)))
    finally:
        await engine.close()
    return took


async def _once(engine: Any, lark: str | None) -> float:
    from antiphon.engines.base import Sampling
    from antiphon.inference.tokens import Constraint, Prompt

    prompt = Prompt(tuple(engine.tokenizer.encode("Once upon a time", special=False)))
    sampling = Sampling(
        max_tokens=_TOKENS,
        temperature=0.0,
        constraint=Constraint(lark) if lark is not None else None,
    )
    first, last, count = 0.0, 0.0, 0
    async with aclosing(engine.generate(prompt, sampling)) as chunks:
        async for chunk in chunks:
            if chunk.ids:
                last = time.perf_counter()
                first = first or last
                count += len(chunk.ids)
    return (last - first) / max(1, count - 1)
