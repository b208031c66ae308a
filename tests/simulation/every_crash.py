"""Stories of one response, each with a crash at every single step of the loop.

A seed of the simulation crashes servers at random steps. Here, the server that generates the
response crashes at the first step, then, in a world of its own, at the second one, and so on until
the response ends without a crash. So it crashes between any two awaits of the path of a tool call:
before and after each call of the store, and while each tool runs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from random import Random
from typing import Any

from msgspec import Struct

from antiphon.limits.quotas import TenantQuotas

from .clients import TENANT, Client, Turn
from .loop import SimulationLoop
from .processes import Server
from .world import Outcome, World, key_record, simulate


class Story(Struct, frozen=True):
    """What one response is about. ``words`` direct the model (see ``engine.py``). ``twice``: a
    server has crashed before, when the first tool began. The steps count from the next claim."""

    words: str
    interrupted_tools: str | None = None
    twice: bool = False


#: All tools, called by the model or by a program, with a model that tells its tokens or does not.
STORIES = tuple(
    Story(" ".join(("c0.0", *words)), choice, twice)
    for twice in (False, True)
    for words in (
        ("roll",), ("pay", "look"), ("task",), ("roll", "pay", "look", "task"),
        ("program", "roll"), ("program", "pay", "look"), ("program", "roll", "pay", "task"),
    )
    for words in (words, (*words, "tokens"))
    for choice in (None, "retry", "fail")
)  # fmt: skip


#: Modules with the path of a tool call, from its intent to its result.
JOURNAL_PATH = (
    "runs/tool_loop/journal.py",
    "runs/tool_loop/executor.py",
    "runs/tool_loop/recovery.py",
    "runs/background/event_log_writer.py",
    "runs/background/jobs.py",
)


def outcomes(story: Story, seed: int, stride: int = 1) -> Iterator[Outcome]:
    """Yield what comes of a story with a crash at each step, or each ``stride``-th one, and at last
    without one."""
    for step in itertools.count(seed % stride, stride):
        outcome = simulate(seed, lambda seed, random: _OneResponse(seed, random, story, step))  # noqa: B023
        yield outcome
        if outcome.counts.get("crash", 0) <= story.twice:
            return


class _OneResponse(World):
    """Two servers, and a client that creates one background response and reads it. ``crash_at``:
    the step of the loop at which the server of this response crashes."""

    def __init__(self, seed: int, random: Random, story: Story, crash_at: int) -> None:
        super().__init__(seed, random)
        self._story = story
        self._crash_at = crash_at
        self._max_responses = self._ceiling = None

    async def run(self) -> None:
        await self._start_servers(2, TenantQuotas())
        client = _Reader("c0", self.servers, self.history, self._random, story=self._story)
        await self._database.store.keys.create(key_record(client.name))
        self._clients.append(client)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        loop.on_strike = self._crash_busy_server
        if self._story.twice:
            self._toolbox.on_start = lambda _: self._crash_busy_server()
            self._database.on_effect = lambda: self._aim_again(loop)
        else:
            self._aim(loop)
        await self._wait([loop.create_task(client.run())], loop.create_task(asyncio.sleep(0)))
        self._database.on_effect, loop.strike_at = self._check_effect, None
        await self._end()

    def _aim(self, loop: SimulationLoop) -> None:
        loop.strike_at = loop.iterations + 1 + self._crash_at

    def _aim_again(self, loop: SimulationLoop) -> None:
        """Aim when another server has claimed the run."""
        run = self._database.store.runs.rows.get((TENANT, "resp_c0x0"))
        if run is not None and run.epoch > 1 and loop.strike_at is None:
            self._aim(loop)

    def _crash_busy_server(self) -> None:
        self._toolbox.on_start = lambda _: None
        self._start_strike(self._break(self._crash, self._busy_server()))

    def _busy_server(self) -> Server:
        """Return the server that has claimed the run; the first one if there is none."""
        run = self._database.store.runs.rows.get((TENANT, "resp_c0x0"))
        owners = [each.process and each.process.service._background.owner for each in self.servers]
        is_claimed = run is not None and run.owner in owners
        return self.servers[owners.index(run.owner) if is_claimed and run is not None else 0]


class _Reader(Client):
    """A client that creates the response of a story and does nothing else with it."""

    def __init__(self, *arguments: Any, story: Story) -> None:
        super().__init__(*arguments, turns=1, conversation=None, chained=False)
        self._story = story

    def _new_turn(self, number: int) -> Turn:
        return Turn(
            text=self._story.words,
            key=self.name,
            background=True,
            interrupted_tools=self._story.interrupted_tools,
        )

    def _extra(self, turn: Turn) -> None:
        return None
