"""The states (KV caches) that are kept although their slots run other prompts: in main memory, and
on disk if they shall outlive this process. Each of the two has a budget."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog
from msgspec import Struct

from antiphon.engines.base import PrefixCacheCounts
from antiphon.inference.tokens import common_prefix_length
from antiphon.support.machine import available_bytes

from .disk_states import DiskStates, StoredState
from .state_files import StateFile, StateFiles
from .state_owners import (
    SLACK,
    StateClaim,
    StateClaims,
    StateOwner,
    StateOwners,
    merge_claims,
    needed,
)

_log = structlog.get_logger(__name__)

_MIN_DEFAULT_MB = 256
#: A state that is larger than this share of the disk's budget is not written to the disk.
_MAX_DISK_SHARE = 0.25


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
    """A kept state. ``ids``: the ids by which it is recognized. ``claims``: those of its owners.
    ``size``: its bytes. ``file``: its copy in memory, if there is one; ``path``: its copy on disk.
    ``older``: files of states that it extends, which are deleted when it is on disk itself.
    ``used``: a number that grows with each use of any state."""

    group: StateGroup
    ids: Sequence[int]
    file: StateFile | None
    size: int
    claims: StateClaims
    path: Path | None = None
    older: list[Path] = []
    used: int = 0

    @property
    def owner(self) -> StateOwner:
        """The owner of the whole state."""
        return self.claims[0].owner


class KeptStates:
    """An index of the kept states. ``max_bytes``: the budget of the memory. ``files``: creates
    files in memory. ``disk``: None to keep no states on disk.

    If the states take more than a budget, the least recently used states of ended conversations are
    evicted first, then those of other conversations, and those of conversations that wait for the
    result of a tool call last.
    """

    def __init__(
        self, max_bytes: int, files: StateFiles | None = None, disk: DiskStates | None = None
    ) -> None:
        self.max_bytes = max_bytes
        self._files, self._disk = files, disk
        self._groups: dict[StateGroup, list[KeptState]] = {}
        self._writing = asyncio.Lock()
        self.owners = StateOwners()
        self._clock = itertools.count(1)
        self._bytes = self._disk_bytes = 0
        self._waiting: set[str] = set()
        self._in_use: list[KeptState] = []
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
            disk_bytes=self._disk_bytes,
            hits=self.hits,
            misses=self.misses,
            evictions=self.evictions,
        )

    def count(self, *, is_hit: bool) -> None:
        """Count a prompt that continues the state of an earlier one, or that does not."""
        self.hits, self.misses = self.hits + is_hit, self.misses + (not is_hit)

    def find(self, prompt: Sequence[int], group: StateGroup) -> tuple[KeptState | None, int]:
        """Return the state with the longest common prefix with the prompt, and the length of the
        prefix. Of several such states, one in memory is preferred, and a short one, whose copy
        is cheap."""
        best, rank = None, (0, True, 0)
        for state in self._groups.get(group, ()):
            shared = common_prefix_length(state.ids, prompt)
            found = (shared, state.file is not None, -len(state.ids))
            if found > rank:
                best, rank = state, found
        return best, rank[0]

    def covering(
        self, ids: Sequence[int], group: StateGroup, *, is_durable: bool = False
    ) -> KeptState | None:
        """Return a kept state that makes the state with these ids superfluous; None if there is
        none. ``is_durable``: as in ``StateOwner``. Only a durable state does so for a durable one.
        """
        for state in self._groups.get(group, ()):
            shared = common_prefix_length(state.ids, ids)
            if shared >= len(ids) - SLACK and state.owner.is_durable >= is_durable:
                return state
        return None

    def fits(self, size: int) -> bool:
        """Return whether a state of ``size`` ids can be kept at all, as far as this is known."""
        return 0 < self.max_bytes >= self._token_bytes * size

    @contextmanager
    def using(self, state: KeptState) -> Iterator[None]:
        """While a prompt gets the state, do not replace or evict it."""
        self._use(state)
        self._in_use.append(state)
        try:
            yield
        finally:
            self._in_use.remove(state)

    def _use(self, state: KeptState) -> None:
        state.used = next(self._clock)

    def add(self, state: KeptState) -> bool:
        """Keep a state, and delete the states that it extends. But if it is not durable, it leaves
        durable ones on the disk. Evict others if the budget needs it. Returns False if the state
        does not fit, or if its owner was deleted; then it is deleted."""
        self._token_bytes = max(self._token_bytes, state.size / max(1, len(state.ids)))
        if state.size > self.max_bytes or needed(state.claims) < len(state.ids):
            if state.file is not None:
                state.file.close()
            return False
        for other in tuple(self._groups.get(state.group, ())):
            shared = common_prefix_length(other.ids, state.ids)
            if other in self._in_use or shared < len(other.ids) - SLACK:
                continue
            if other.owner.is_durable > state.owner.is_durable:
                if other.path is not None:  # otherwise it is still to be written
                    self._drop_file(other)
                continue
            if other.path is not None:
                state.older = [*state.older, *other.older, other.path]
                self._disk_bytes -= other.size
                other.path, other.older = None, []
            state.claims = merge_claims(state.claims, other.claims, shared)
            self.remove(other)
        self._groups.setdefault(state.group, []).append(state)
        self._bytes += state.size
        self._use(state)
        self._evict(state)
        return state.file is not None or state.path is not None

    def remove(self, state: KeptState) -> None:
        """Delete a state, in memory and on disk."""
        self._drop_file(state)
        self._drop_path(state)
        self._forget(state)

    def _forget(self, state: KeptState) -> None:
        group = self._groups.get(state.group, [])
        if state in group:
            group.remove(state)
            if not group:
                del self._groups[state.group]

    def close(self) -> None:
        """Delete all states in memory."""
        for state in self:
            self._drop_file(state)
        self._groups.clear()

    # --- the disk --------------------------------------------------------------------------------

    async def load(self) -> None:
        """Find the states on disk."""
        if self._disk is None:
            return
        try:
            found = await asyncio.to_thread(self._disk.load)
        except OSError as error:
            _log.warning("no states are kept on disk", reason=str(error))
            self._disk = None
            return
        for path, stored in found:
            group, ids = StateGroup(stored.scope, stored.adapter), stored.unpack()
            owner = self.owners.get(stored.session, stored.tenant, stored.owner, True)
            claims = (StateClaim(owner, len(ids)),)
            state = KeptState(group, ids, None, stored.size, claims, path)
            self._disk_bytes += state.size
            if self.covering(ids, group):  # the server was killed before it deleted the file
                self._drop_path(state)
                continue
            self._groups.setdefault(group, []).append(state)
            self._use(state)
        self._evict_from_disk()

    async def open(self, state: KeptState) -> StateFile | None:
        """Return the state's copy in memory. If there is none, it is read from the disk. Returns
        None if this fails, or if the state was deleted meanwhile."""
        if state.file is not None or state.path is None:
            return state.file
        assert self._disk is not None and self._files is not None
        if (file := self._files.create()) is None:
            return None
        try:
            await asyncio.to_thread(self._disk.read, state.path, file.path)
        except (OSError, ValueError) as error:
            _log.warning("a kept state cannot be read", reason=str(error))
            file.close()
            self.remove(state)
            return None
        if state.path is None:  # the state was deleted meanwhile
            file.close()
            return None
        state.file = file
        self._bytes += state.size
        self._evict(state)
        return file

    async def persist(self, state: KeptState) -> None:
        """Write a state to the disk, if it may be written and is not there yet."""
        async with self._writing:
            await self._persist(state)

    async def _persist(self, state: KeptState) -> None:
        disk, file = self._disk, state.file
        if disk is None or file is None or not state.owner.is_durable or state.path is not None:
            return
        if state.size > disk.max_bytes * _MAX_DISK_SHARE:
            return
        stored = StoredState(
            scope=state.group.scope,
            adapter=state.group.adapter,
            ids=StoredState.pack(state.ids),
            session=state.owner.session,
            tenant=state.owner.tenant,
            owner=state.owner.id,
            size=state.size,
        )
        try:
            path = await asyncio.to_thread(disk.write, stored, file.path)
        except OSError as error:
            if state.file is not None:  # otherwise it was deleted or replaced meanwhile
                _log.warning("a state cannot be kept on disk", reason=str(error))
            return
        if state not in self._groups.get(state.group, ()):  # it was deleted or replaced meanwhile
            path.unlink(missing_ok=True)
            return
        for older in state.older:
            older.unlink(missing_ok=True)
        state.path, state.older = path, []
        self._disk_bytes += state.size
        for other in [each for each in self if each.path and disk.is_expired(each.path)]:
            self.remove(other)
        self._evict_from_disk()

    # --- conversations ---------------------------------------------------------------------------

    def wait(self, session: str, is_waiting: bool) -> None:
        """Record whether a conversation waits for the result of a tool call."""
        (self._waiting.add if is_waiting else self._waiting.discard)(session)

    def end(self, session: str) -> None:
        """Evict the states of an ended conversation before all others."""
        self._waiting.discard(session)
        for state in self:
            if state.owner.session == session:
                state.used = 0

    def delete_unneeded(self) -> list[KeptState]:
        """Delete the states whose owners were deleted. Returns those of which a living owner needs
        the beginning. Their files still exist, and contain more. So the caller must ``remove``
        them."""
        found = []
        for state in tuple(self):
            length = needed(state.claims)
            if length == len(state.ids):
                continue
            state.ids = state.ids[:length]
            state.claims = merge_claims((), state.claims, length)
            if length:
                found.append(state)
                self._forget(state)
            else:
                self.remove(state)
        return found

    # --- budgets ---------------------------------------------------------------------------------

    def _evict(self, state: KeptState) -> None:
        spared = (state, *self._in_use)
        while self._bytes > self.max_bytes:
            others = (each for each in self if each.file and each not in spared)
            evicted = min(others, key=self._rank, default=state)
            self._drop_file(evicted)
            self.evictions += 1
            if evicted.path is None:
                self.remove(evicted)
            if evicted is state:
                return

    def _evict_from_disk(self) -> None:
        assert self._disk is not None
        while self._disk_bytes > self._disk.max_bytes:
            evicted = min((each for each in self if each.path), key=self._rank)
            self._drop_path(evicted)
            self.evictions += 1
            if evicted.file is None:
                self.remove(evicted)

    def _drop_file(self, state: KeptState) -> None:
        if state.file is not None:
            state.file.close()
            state.file = None
            self._bytes -= state.size

    def _drop_path(self, state: KeptState) -> None:
        for older in state.older:
            older.unlink(missing_ok=True)
        state.older = []
        if state.path is not None:
            state.path.unlink(missing_ok=True)
            state.path = None
            self._disk_bytes -= state.size

    def _rank(self, state: KeptState) -> tuple[bool, int]:
        return (state.owner.session in self._waiting, state.used)


def default_cache_mb() -> int:
    """Return the default of the budget in MiB: a quarter of the memory that is free on this machine
    or in this process's control group, but at least 256."""
    return max(_MIN_DEFAULT_MB, available_bytes() // 4 >> 20)
