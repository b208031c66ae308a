"""Seeded simulations of several servers with faults. See the README of this folder."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from random import Random

import pytest

from tests.simulation.crash_points import awaits_of
from tests.simulation.every_crash import STORIES, Story, outcomes
from tests.simulation.loop import LoopStuck, SimulationLoop
from tests.simulation.world import simulate
from tests.sources import PACKAGE

#: Seeds of the tests of invariants. The first two ranges find most of the README's defects.
SEEDS = tuple(range(at, at + 90) for at in range(0, 360, 90))


@pytest.mark.parametrize(
    "seeds", [*SEEDS[:2], *(pytest.param(seeds, marks=pytest.mark.e2e) for seeds in SEEDS[2:])]
)
def test_invariants_hold_for_all_seeds(seeds: range) -> None:
    for seed in seeds:
        outcome = simulate(seed)
        assert outcome.violation is None, (
            f"{outcome.violation}\nReplay: python -m tests.simulation {seed}"
        )
    gc.collect()


@pytest.mark.parametrize(
    "stories",
    [STORIES[-2:], pytest.param(STORIES[1::2], marks=pytest.mark.e2e)],
    ids=["two", "half"],
)
def test_invariants_hold_wherever_the_server_crashes(stories: Sequence[Story]) -> None:
    for seed, story in enumerate(stories):
        for number, outcome in enumerate(outcomes(story, seed, stride=12)):
            assert outcome.violation is None, f"{story}, crash {number}: {outcome.violation}"


@pytest.mark.e2e
def test_crashes_hit_each_await_of_the_journal() -> None:
    """Also before and after the store has done what it was asked. Whether a response has ended is
    asked when a call is cancelled, not by a server that crashes."""
    stories = [Story("c0.0 roll task look tokens", "retry", twice) for twice in (False, True)]
    points = {
        point
        for story in stories
        for outcome in outcomes(story, 0, stride=2)
        for point in outcome.crash_points
    }
    module = "runs/tool_loop/journal.py"
    source = (PACKAGE / module).read_text().splitlines()
    for first, last in awaits_of(module):
        phases = {each.phase for each in points if each.is_within(module, first, last)}
        is_asked = "[0] is None" not in source[first - 1]
        assert phases == ({"no effect", "has effect"} if is_asked else set()), source[first - 1]


@pytest.mark.parametrize("seed", [40263, 41048])
def test_result_that_was_reported_but_lost_is_not_reported_twice(seed: int) -> None:
    """A server dies after the event ``mcp_call.completed`` and before the journal has the
    result. The call only reads, so the next server runs it again."""
    assert simulate(seed).violation is None


@pytest.mark.parametrize("seed", [3, 8])
def test_a_seed_replays_exactly(seed: int) -> None:
    assert simulate(seed) == simulate(seed)


def test_loop_has_virtual_time_and_a_seeded_order() -> None:
    async def sleeper(number: int, order: list[int]) -> None:
        await asyncio.sleep(3600)
        order.append(number)

    async def main() -> list[int]:
        order: list[int] = []
        await asyncio.gather(*(sleeper(number, order) for number in range(10)))
        return order

    def run(seed: int, *, shuffles: bool = True) -> list[int]:
        loop = SimulationLoop(Random(seed), shuffles=shuffles)
        try:
            order = loop.run_until_complete(main())
            assert loop.time() == 3600
        finally:
            loop.close()
        return order

    assert run(1) == run(1) != run(2)
    assert run(1, shuffles=False) == list(range(10))


def test_loop_reports_tasks_that_wait_forever() -> None:
    loop = SimulationLoop(Random(1), shuffles=False)
    forever = loop.create_future()
    with pytest.raises(LoopStuck):
        loop.run_until_complete(forever)
    loop.close()
