"""News: what other processes say of runs, and how this one's followers come by what they miss.

A notice names runs by their rows. What grew and is followed here is fetched, all runs in one query,
one query at a time: notices that come meanwhile share the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog
from msgspec import Struct

from antiphon.errors import RunError
from antiphon.store.records import Batch
from antiphon.store.row_mapping import batch_of
from antiphon.store.runs import Listener
from antiphon.store.subscriptions import Tails

from .pool import ConnectionPool, key

__all__ = ["Notice", "RunNotifications"]

_log = structlog.get_logger(__name__)

#: PostgreSQL's limit is 8000.
_MOST_BYTES = 7_900

_Key = tuple[str, str]


class Notice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened in one transaction of a process: runs (by row) that grew, runs that are over,
    runs that went to somebody else under an epoch, and whether there may be one to claim."""

    by: str = ""
    grown: tuple[int, ...] = ()
    over: tuple[_Key, ...] = ()
    lost: tuple[tuple[str, int], ...] = ()
    queued: bool = False
    #: Too much to be named.
    all: bool = False

    def written(self, by: str) -> str:
        """As the payload of a notification."""
        text = _encode(msgspec.structs.replace(self, by=by))
        if len(text) > _MOST_BYTES:
            text = _encode(Notice(by=by, queued=self.queued, all=True))
        return text.decode()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Notice).decode


class _Followed(Struct):
    """A run that somebody here follows: its row, and the last event its tails have been given."""

    row: int
    last: int


class RunNotifications:
    """One a process; ``name`` is how its own notices are known."""

    def __init__(self, cluster: ConnectionPool, tails: Tails, name: str) -> None:
        self._cluster = cluster
        self._tails = tails
        self._name = name
        self._listener: Listener | None = None
        self._begun = False
        self._followed: dict[_Key, _Followed] = {}
        self._grown: set[int] = set()
        self._all = False
        self._fetching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Hear from now on."""
        if not self._begun:
            self._begun = True
            self._cluster.listen(self._heard, self._deaf)

    def tell(self, listener: Listener) -> None:
        """Tell this listener what concerns it."""
        self._listener = listener
        self.begin()

    async def close(self) -> None:
        """Hear no more."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))

    # --- of this process -------------------------------------------------------------------------

    def kept_here(self, tenant: str, response_id: str, batch: Batch) -> None:
        """This process appended: its followers need no database."""
        followed = self._followed.get((tenant, response_id))
        if followed is not None:
            followed.last = max(followed.last, batch.last)
        self._tails.put(tenant, response_id, batch)

    def queued(self) -> None:
        """There may be a run to claim."""
        if self._listener is not None:
            self._listener.queued()

    def lost(self, lost: Sequence[tuple[str, int]]) -> None:
        """These runs are somebody else's."""
        if self._listener is not None:
            for response_id, epoch in lost:
                self._listener.lost(response_id, epoch)

    # --- of others -------------------------------------------------------------------------------

    def _heard(self, text: str) -> None:
        try:
            notice = _decode(text)
        except msgspec.MsgspecError:
            return  # somebody else's
        if notice.by == self._name:
            return
        if notice.queued:
            self.queued()
        self.lost(notice.lost)
        self._tails.touch(notice.over)
        if not (notice.grown or notice.all) or not self._tails.followed():
            return
        self._grown.update(notice.grown)
        self._all = self._all or notice.all
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch_on(), name="news")

    def _deaf(self) -> None:
        """Something may have been missed."""
        self._followed.clear()
        self._tails.touch()
        self.queued()

    async def _fetch_on(self) -> None:
        try:
            while self._grown or self._all:
                grown, self._grown = self._grown, set()
                everything, self._all = self._all, False
                await self._fetch(None if everything else grown)
        except RunError:
            self._deaf()  # readers look for themselves, and hear what is wrong
        finally:
            self._fetching = None

    async def _fetch(self, grown: set[int] | None) -> None:
        """Give the tails what they miss of these runs (None: of all that are followed)."""
        wanted = set(self._tails.followed())
        for gone in self._followed.keys() - wanted:
            del self._followed[gone]
        await self._meet([each for each in wanted if each not in self._followed])
        rows = {
            followed.row: (name, followed)
            for name, followed in self._followed.items()
            if grown is None or followed.row in grown
        }
        if not rows:
            return
        lasts = [followed.last for _, followed in rows.values()]
        for row, *columns in await self._cluster.rows("news", list(rows), lasts):
            name, followed = rows[row]
            self._pass_on(name, followed, batch_of(columns))

    def _pass_on(self, name: _Key, followed: _Followed, batch: Batch) -> None:
        if batch.first == followed.last + 1:
            self._tails.put(*name, batch)
        elif batch.last > followed.last:  # not what is next: readers look for themselves
            self._tails.touch([name])
        followed.last = max(followed.last, batch.last)

    async def _meet(self, names: list[_Key]) -> None:
        """Runs that are followed since the last look: from here on their tails are fed; what came
        before, their readers read."""
        if not names:
            return
        tenants, ids = zip(*((tenant, key(name)) for tenant, name in names), strict=True)
        for place, row, last in await self._cluster.rows("followed", tenants, ids):
            self._followed[names[place - 1]] = _Followed(row, last)
            self._tails.touch([names[place - 1]])
