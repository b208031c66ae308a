"""Every installed engine: tokens a second, directly and through the server.

All run the tests' tiny model, so the numbers describe engines and server, not a model.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .load import Plan, load
from .process import running
from .table import Line, median

__all__ = ["SOURCES", "engines", "installed"]

_FOLDER = Path(__file__).parents[1] / "tests" / "tiny_models" / "tiny-tools"
#: Engine → its package, and the model in its form.
SOURCES = {
    "llama": ("xllamacpp", _FOLDER / "tiny-tools.gguf"),
    "openvino": ("openvino_genai", _FOLDER / "tiny-tools.gguf"),
    "transformers": ("transformers", _FOLDER),
    "vllm": ("vllm", _FOLDER),
}
TOKENS = 400
ROUNDS = 3
_QUESTION = "Tell me a story."


def installed() -> list[str]:
    """Return the names of the engines whose packages are installed."""
    return [name for name, (package, _) in SOURCES.items() if importlib.util.find_spec(package)]


def engines() -> Iterator[Line]:
    body = json.dumps(
        {
            "model": "model",
            "input": _QUESTION,
            "stream": True,
            "store": False,
            "temperature": 0,
            "max_output_tokens": TOKENS,
            "ignore_eos": True,
        }
    )
    for name in installed():
        for streams in (1, 4):
            served, direct = _rates(name, streams, body)
            yield Line(
                what=f"{name}: tokens a second, {streams} streams",
                value=served / direct,
                unit="x itself",
                note=f"{served:,.0f} of {direct:,.0f}/s",
            )


def _rates(name: str, streams: int, body: str) -> tuple[float, float]:
    """Tokens a second through the server and of the engine alone, measured in turn."""
    served, direct = [], []
    with running("engine", name, str(streams)) as server, asyncio.Runner() as runner:
        plan = Plan(port=server.port, body=body, connections=streams, requests=streams)
        created = runner.run(backend(name, streams))
        for _ in range(ROUNDS + 1):  # the first round warms up
            served.append(streams * TOKENS / load(plan).wall_s)
            direct.append(runner.run(_rate(created._engine, streams)))
        runner.run(created.close())
    return median(served[1:]), median(direct[1:])


async def backend(name: str, parallel: int) -> Any:
    """The engine with its dialect, as settings make it."""
    from antiphon.config.model import Model
    from antiphon.config.settings import Settings
    from antiphon.models.factories import backend_factory

    model = Model(
        engine=name,
        source=str(SOURCES[name][1]),
        threads=1,
        parallel=parallel,
        context_size=2048,
    )
    return await backend_factory("model", model)("model", model, Settings(), None)


async def _rate(engine: Any, streams: int) -> float:
    """Tokens a second of the engine alone."""
    from antiphon.engines.base import Sampling
    from antiphon.tokens import Prompt

    request = f"<|im_start|>user\n{_QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    prompt = Prompt(tuple(engine.tokenizer.encode(request, special=True)))
    sampling = Sampling(max_tokens=TOKENS, temperature=0, ignore_eos=True)

    async def one() -> int:
        return sum([len(chunk.ids) async for chunk in engine.generate(prompt, sampling)])

    started = time.perf_counter()
    count = sum(await asyncio.gather(*(one() for _ in range(streams))))
    return count / (time.perf_counter() - started)
