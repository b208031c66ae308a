"""Every installed engine: tokens a second, directly and through the server.

``engines`` runs the tests' tiny model, so its numbers describe engines and server, not a model.
``embedded`` compares the engines of GGUF files on the default model.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .load import Plan, load
from .process import family_cpu_s, running
from .table import Line, median

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
#: Streams at once in ``embedded``, and the tokens of their prompts and of their outputs.
_STREAMS, _PROMPT, _OUTPUT = (1, 4, 16), 128, 64


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


def embedded() -> Iterator[Line]:
    """OpenVINO against llama.cpp on the default model: first token, rate and CPU time, in turn."""
    if not {"llama", "openvino"} <= {*installed()}:
        return
    with asyncio.Runner() as runner:
        for streams in _STREAMS:
            found = runner.run(_compare(streams))
            llama, openvino = found["llama"], found["openvino"]
            for at, (what, unit) in enumerate(
                (("first token", "ms"), ("tokens a second", "/s"), ("CPU a token", "ms"))
            ):
                one, other = (median(each[at] for each in row) for row in (llama, openvino))
                yield Line(
                    what=f"embedded: {what}, {streams} streams",
                    value=other / one,
                    unit="x llama",
                    note=f"openvino {other:,.1f} to llama {one:,.1f} {unit}",
                )


async def _compare(streams: int) -> dict[str, list[tuple[float, float, float]]]:
    """The measurements of each engine, which are made in turn."""
    from antiphon.engines.base import LoadOptions
    from antiphon.engines.llama.engine import load as load_llama
    from antiphon.engines.openvino.engine import load as load_openvino
    from tests.real.embedded_model import smollm2

    path = await asyncio.to_thread(smollm2)
    options = LoadOptions(threads=1, parallel=streams, context_size=512, prompt_cache_mb=0)
    created = {
        "llama": await load_llama(path, options),
        "openvino": await load_openvino(path, options),
    }
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in created}
    seeds = itertools.count()
    for turn in range(ROUNDS + 1):
        for name, engine in created.items():
            measured = await _streams(engine, streams, next(seeds))
            if turn:  # the first round warms up
                found[name].append(measured)
    for engine in created.values():
        await engine.close()
    return found


async def _streams(engine: Any, streams: int, seed: int) -> tuple[float, float, float]:
    """Median milliseconds to the first token, tokens a second, and milliseconds of CPU time a
    token, of generations with different prompts."""
    from antiphon.engines.base import Sampling
    from antiphon.inference.tokens import Prompt

    random_ids = random.Random(seed)
    sampling = Sampling(max_tokens=_OUTPUT, temperature=0, ignore_eos=True)
    before, started = family_cpu_s(os.getpid()), time.perf_counter()

    async def one(prompt: Prompt) -> float:
        first = 0.0
        async for chunk in engine.generate(prompt, sampling):
            if chunk.ids and not first:
                first = time.perf_counter() - started
        return first

    prompts = [
        Prompt(tuple(random_ids.randrange(1000, 20_000) for _ in range(_PROMPT)))
        for _ in range(streams)
    ]
    first = median(await asyncio.gather(*map(one, prompts)))
    wall, tokens = time.perf_counter() - started, streams * _OUTPUT
    spent = family_cpu_s(os.getpid()) - before
    return first * 1000, tokens / wall, spent / tokens * 1000


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
    from antiphon.inference.tokens import Prompt

    request = f"<|im_start|>user\n{_QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    prompt = Prompt(tuple(engine.tokenizer.encode(request, special=True)))
    sampling = Sampling(max_tokens=TOKENS, temperature=0, ignore_eos=True)

    async def one() -> int:
        return sum([len(chunk.ids) async for chunk in engine.generate(prompt, sampling)])

    started = time.perf_counter()
    count = sum(await asyncio.gather(*(one() for _ in range(streams))))
    return count / (time.perf_counter() - started)
