"""``prefixes``: how much of the prompts of agents' conversations the embedded engine finds in its
kept states, compared with a cache that never forgets. It runs the tests' tiny model, because only
the number of tokens counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.llama.engine import LlamaEngine, load
from antiphon.inference.tokens import Prompt
from antiphon.testing.engine_check import collect
from tests.engines.llama.workloads import Outcome, Workload, run_workload
from tests.tiny_models.tiny_tools import GGUF

from .table import Line


def _small(conversations: int, turns: int, *, thinking: float = 0.5, tenants: int = 1) -> Workload:
    return Workload(
        conversations=conversations,
        turns=turns,
        thinking=thinking,
        tenants=tenants,
        head=600,
        text=(10, 60),
        reply=(20, 80),
    )


#: Name → the workload, and MiB of kept states.
_WORKLOADS: Mapping[str, tuple[Workload, int]] = {
    "4 conversations": (_small(4, 6), 512),
    "4 conversations, all think": (_small(4, 6, thinking=1), 512),
    "32 conversations": (_small(32, 4), 512),
    "2 tenants": (_small(8, 6, tenants=2), 512),
    "32 conversations, 2 MiB": (_small(32, 4), 2),
}


def prefixes() -> Iterator[Line]:
    """Run each workload, one request at a time, on four slots."""
    for name, (workload, megabytes) in _WORKLOADS.items():
        outcome = asyncio.run(_run(workload, megabytes))
        yield Line(
            what=f"cached prefixes: {name}",
            value=100 * outcome.share,
            unit="% of all",
            at_least=99 if megabytes > 100 else None,
            note=f"{outcome.computed:,} tokens computed, at most {outcome.lag} behind",
        )


async def _run(workload: Workload, megabytes: int) -> Outcome:
    options = LoadOptions(threads=1, context_size=4096, parallel=4, prompt_cache_mb=megabytes)
    engine = await load(GGUF, options)

    async def generate(
        scope: str | None, prompt: tuple[int, ...], length: int
    ) -> tuple[int, tuple[int, ...]]:
        return await _generate(engine, scope, prompt, length)

    try:
        return await run_workload(workload, generate)
    finally:
        await engine.close()


async def _generate(
    engine: LlamaEngine, scope: str | None, prompt: tuple[int, ...], length: int
) -> tuple[int, tuple[int, ...]]:
    sampling = Sampling(max_tokens=length, temperature=0, ignore_eos=True, cache_scope=scope)
    outcome = await collect(engine, Prompt(prompt), sampling)
    return outcome.cached_tokens or 0, tuple(outcome.ids)
