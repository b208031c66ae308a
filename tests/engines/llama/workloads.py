"""Workloads of agents: conversations with a common head, whose requests repeat, extend or change
earlier ones. A request consists of a prompt and the length of the reply in tokens. The number of
tokens that an ideal cache would have is computed without a model."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from antiphon.inference.tokens import common_prefix_length

#: Runs a request: its scope, its prompt and the number of tokens of the reply → the number of
#: cached tokens, and the reply.
Generate = Callable[[str | None, tuple[int, ...], int], Awaitable[tuple[int, tuple[int, ...]]]]


class Workload(Struct, frozen=True, kw_only=True):
    """- ``conversations``: how many there are. ``turns``: the turns of each.
    - ``head``: tokens of the common system prompt. ``text``: tokens of a user message.
    - ``thinking``: share of the conversations whose replies begin with thinking, which the next
      prompt drops. ``retries``, ``edits``, ``branches``: shares of requests that repeat the last
      prompt, change the last user message, or go back to an earlier turn.
    - ``tenants``: number of scopes, which share nothing. ``seed``: of the randomness.
    """

    conversations: int
    turns: int
    head: int = 1_500
    text: tuple[int, int] = (20, 120)
    reply: tuple[int, int] = (80, 300)
    thinking: float = 0.5
    retries: float = 0.2
    edits: float = 0.15
    branches: float = 0.1
    tenants: int = 1
    seed: int = 1


class Outcome(Struct):
    """What a workload's requests found. ``cached``, ``best``: cached tokens, and those of an ideal
    cache. ``lag``: the most tokens by which one request fell short of the ideal. ``computed``: the
    prompt tokens that were computed."""

    cached: int = 0
    best: int = 0
    lag: int = 0
    computed: int = 0

    @property
    def share(self) -> float:
        """The share of the ideal that was cached."""
        return self.cached / self.best if self.best else 1.0


class Conversation:
    """One conversation of a workload: it says its next prompt."""

    def __init__(self, number: int, workload: Workload, random: random.Random) -> None:
        self.scope = f"tenant {number % workload.tenants}" if workload.tenants > 1 else None
        self._load, self._random = workload, random
        #: The prompts and replies so far, without the thinking that templates drop.
        self._past = [_tokens(workload.head, 7)]
        self._message: tuple[int, ...] = ()
        self._is_thinking = random.random() < workload.thinking
        self.left = workload.turns

    def next_prompt(self) -> tuple[tuple[int, ...], int]:
        """Return the next prompt, and the number of tokens of its reply."""
        choice, load = self._random.random(), self._load
        if self._message and choice < load.retries:
            self._past.pop()
        elif self._message and choice < load.retries + load.edits:
            self._past.pop()
            kept = self._message[: len(self._message) // 2]
            self._message = (*kept, *self._text())
        else:
            if len(self._past) > 2 and choice > 1 - load.branches:
                del self._past[self._random.randrange(1, len(self._past) - 1) :]
            self._message = self._text()
        self.left -= 1
        return (*self._flat(), *self._message), self._random.randint(*load.reply)

    def add_reply(self, reply: tuple[int, ...]) -> None:
        """Add the reply to the last prompt."""
        visible = reply[len(reply) // 2 :] if self._is_thinking else reply
        self._past.append((*self._message, *visible))

    def _flat(self) -> tuple[int, ...]:
        return tuple(token for part in self._past for token in part)

    def _text(self) -> tuple[int, ...]:
        count = self._random.randint(*self._load.text)
        return _tokens(count, self._random.randrange(10**9))


def _tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(300, 900), k=count))


def optimum(prompt: tuple[int, ...], earlier: Sequence[tuple[int, ...]]) -> int:
    """Return how many tokens of the prompt an ideal cache has: all that an earlier sequence begins
    with, but not the last token of the prompt, which is always computed."""
    longest = max((common_prefix_length(each, prompt) for each in earlier), default=0)
    return min(longest, len(prompt) - 1)


async def run_workload(workload: Workload, generate: Generate) -> Outcome:
    """Run a workload, one request at a time, in a random order of the conversations."""
    chance, outcome = random.Random(workload.seed), Outcome()
    talks = [Conversation(n, workload, chance) for n in range(workload.conversations)]
    earlier: dict[str | None, list[tuple[int, ...]]] = {}
    while remaining := [talk for talk in talks if talk.left]:
        talk = chance.choice(remaining)
        prompt, length = talk.next_prompt()
        known = earlier.setdefault(talk.scope, [])
        best = optimum(prompt, known)
        cached, reply = await generate(talk.scope, prompt, length)
        # The last token of a reply is sampled, but not computed.
        known.append((*prompt, *reply[:-1]))
        talk.add_reply(reply)
        outcome.cached += cached
        outcome.best += best
        outcome.computed += len(prompt) - cached
        outcome.lag = max(outcome.lag, best - cached)
    return outcome
