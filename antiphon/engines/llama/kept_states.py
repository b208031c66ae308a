"""The states (KV caches) that are kept although their slots run other prompts, within a budget of
memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from antiphon.engines.base import PrefixCacheCounts
from antiphon.inference.tokens import common_prefix_length
from antiphon.support.memory import available_bytes

from .state_files import StateFile

__all__ = ["NO_GROUP", "KeptState", "KeptStates", "StateGroup", "default_cache_mb"]

#: A state that covers all but this number of another state's ids makes that state superfluous. The
#: last sampled token of a slot is not computed, for example.
_SLACK = 8
_MIN_DEFAULT_MB = 256


class StateGroup(NamedTuple):
    """What states must have in common so that one may be used for the prompt of another.

    ``scope``: the cache scope of the request, which stands for the tenant; see ``Sampling``.
    ``adapter``: the name of the LoRA adapter.
    """

    scope: str | None = None
    adapter: str | None = None


#: The group of requests without a scope and without an adapter.
NO_GROUP = StateGroup()


class KeptState(Struct, eq=False):
    """A kept state. ``ids``: the ids by which it is recognized. ``size``: its bytes. ``session``:
    the conversation that left it, as in ``Sampling.session_key``. ``used``: a number that grows
    with each use of any state."""

    group: StateGroup
    ids: Sequence[int]
    file: StateFile
    size: int
    session: str | None = None
    used: int = 0


class KeptStates:
    """An index of the kept states. ``max_bytes``: the budget.

    If the states take more, the least recently used states of ended conversations are evicted
    first, then those of other conversations, and those of conversations that wait for the result of
    a tool call last.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._groups: dict[StateGroup, list[KeptState]] = {}
        self._clock = itertools.count(1)
        self._bytes = 0
        self._waiting: set[str] = set()
        #: The bytes of one token, as far as known. It tells whether a state will fit.
        self._token_bytes = 0.0
        self.hits = self.misses = self.evictions = 0

    def __iter__(self) -> Iterator[KeptState]:
        return itertools.chain.from_iterable(self._groups.values())

    @property
    def counts(self) -> PrefixCacheCounts:
        """What the cache holds and has done."""
        return PrefixCacheCounts(
            states=sum(map(len, self._groups.values())),
            bytes=self._bytes,
            limit_bytes=self.max_bytes,
            hits=self.hits,
            misses=self.misses,
            evictions=self.evictions,
        )

    def find(self, prompt: Sequence[int], group: StateGroup) -> tuple[KeptState | None, int]:
        """Return the state with the longest common prefix with the prompt, and the length of the
        prefix."""
        best, longest = None, 0
        for state in self._groups.get(group, ()):
            common = common_prefix_length(state.ids, prompt)
            if common > longest:
                best, longest = state, common
        return best, longest

    def covers(self, ids: Sequence[int], group: StateGroup) -> bool:
        """Return whether a kept state makes the state with these ids superfluous."""
        return self.find(ids, group)[1] >= len(ids) - _SLACK

    def fits(self, ids: Sequence[int]) -> bool:
        """Return whether the state with these ids can be kept at all, as far as this is known."""
        return 0 < self.max_bytes >= self._token_bytes * len(ids)

    def use(self, state: KeptState) -> None:
        """Record that a prompt continues the state."""
        state.used = next(self._clock)

    def add(self, state: KeptState, sparing: KeptState | None = None) -> bool:
        """Keep a state, and delete the states that it extends. Evict others if the budget needs it,
        but not ``sparing``. Returns False if the state does not fit; then it is deleted."""
        self._token_bytes = max(self._token_bytes, state.size / max(1, len(state.ids)))
        if state.size > self.max_bytes:
            state.file.close()
            return False
        for other in tuple(self._groups.get(state.group, ())):
            shared = common_prefix_length(other.ids, state.ids)
            if other is not sparing and shared >= len(other.ids) - _SLACK:
                self.remove(other)
        self._groups.setdefault(state.group, []).append(state)
        self._bytes += state.size
        self.use(state)
        while self._bytes > self.max_bytes:
            others = [each for each in self if each is not state and each is not sparing]
            evicted = min(others, key=self._rank, default=state)
            self.remove(evicted)
            self.evictions += 1
            if evicted is state:
                return False
        return True

    def remove(self, state: KeptState) -> None:
        """Delete a state."""
        group = self._groups[state.group]
        group.remove(state)
        if not group:
            del self._groups[state.group]
        self._bytes -= state.size
        state.file.close()

    def wait(self, session: str, is_waiting: bool) -> None:
        """Record whether a conversation waits for the result of a tool call."""
        (self._waiting.add if is_waiting else self._waiting.discard)(session)

    def end(self, session: str) -> None:
        """Evict the states of an ended conversation before all others."""
        self._waiting.discard(session)
        for state in self:
            if state.session == session:
                state.used = 0

    def delete(self, session: str) -> None:
        """Delete all states of a conversation."""
        self._waiting.discard(session)
        for state in [each for each in self if each.session == session]:
            self.remove(state)

    def close(self) -> None:
        """Delete all states."""
        for state in tuple(self):
            self.remove(state)

    def _rank(self, state: KeptState) -> tuple[bool, int]:
        return (state.session in self._waiting, state.used)


def default_cache_mb() -> int:
    """Return the default of the budget in MiB: a quarter of the memory that is free on this machine
    or in this process's control group, but at least 256."""
    return max(_MIN_DEFAULT_MB, available_bytes() // 4 >> 20)
