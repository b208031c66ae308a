"""Notifications about runs between the processes that share an SQLite database (the peers).

A process follows a run if it has readers of the run, and tells the other processes which runs it
follows. The process that executes a run sends each new batch of events to the processes that follow
the run. Messages can be lost, so the readers of followed runs also read the database every few
seconds.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from antiphon.store.common.claimable_runs import ClaimableRuns, Notice
from antiphon.store.common.peers import Peers
from antiphon.store.records import Claim, EventBatch
from antiphon.store.runs import LocalNotifications
from antiphon.support.tasks import BackgroundTasks

#: Seconds between two checks of the followed runs. A process counts as a follower of a run for
#: ``_FOLLOWS_S`` seconds after its last message about this run.
_LOOK_S, _FOLLOWS_S = 2.0, 7.0
#: Largest size of the lines in a message, in bytes. Followers read longer lines from the database.
_MAX_LINES_BYTES = 64 * 2**10

_Key = tuple[str, str]


class ChangedRuns(Struct, frozen=True, array_like=True, tag=0):
    """A message about changes of runs."""

    notice: Notice


class FollowRequest(Struct, frozen=True, array_like=True, tag=1):
    """A message from a process that has readers of a run, and wants to receive the new batches of
    events of this run. ``key``: tenant and id of the run."""

    key: _Key


class FollowReply(Struct, frozen=True, array_like=True, tag=2):
    """The answer to a ``FollowRequest``. The process that answers has recorded the process that
    asked as a follower of the run. From now on, each batch of events that the answering process
    appends to the run is also sent to the follower. The follower reads the earlier batches from the
    database. The follower repeats its request regularly, but gets no further answer while it is
    recorded."""

    key: _Key


class AppendedBatch(Struct, frozen=True, array_like=True, tag=3):
    """A new batch of events of a run. It is sent to each process that has readers of the run.
    ``key``: tenant and id of the run. ``first``, ``count``: as in ``EventBatch``. ``lines``: the
    events. If they are too long for a message, ``lines`` is empty, and the receiver reads them from
    the database."""

    key: _Key
    first: int
    count: int
    lines: bytes


PeerMessage: TypeAlias = ChangedRuns | FollowRequest | FollowReply | AppendedBatch

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PeerMessage).decode


class PeerNotifications(LocalNotifications):
    """Sends notifications about runs from this process to its peers, and receives the notifications
    of the peers. ``folder``: the folder with the sockets of all processes. None: this process has
    no peers, so notifications only reach this process itself."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self._folder = folder
        self._peers = Peers(secrets.token_hex(6), self._on_message, self._on_gone)
        if folder is not None:
            self.subscriptions.on_wait = self._follow
        self._queue = ClaimableRuns(self.notify_queued)
        #: The followed runs, and whether a batch has come since the last check.
        self._followed: dict[_Key, bool] = {}
        #: Runs that this process has claimed. Only this process appends to them.
        self._claimed: set[str] = set()
        #: The processes that follow each run, and the time until which they do.
        self._followers: dict[_Key, dict[str, float]] = {}
        self._looks = BackgroundTasks("follow runs")

    async def open(self) -> None:
        """Connect to the other processes."""
        if self._folder is not None:
            await self._peers.open(self._folder)

    async def close(self) -> None:
        """Close the connections."""
        self._queue.close()
        self._peers.close()
        await self._looks.close()

    # --- changes by this process -----------------------------------------------------------------

    def on_created(self, response_id: str) -> None:
        """Tell the listener in this process, and all other processes, that there is a new run to
        claim."""
        self.notify_queued()
        self._broadcast(ChangedRuns(Notice(queued_runs=(response_id,))))

    def on_claimed(self, claims: Sequence[Claim], lost: Sequence[tuple[str, int]]) -> None:
        """Tell the other processes which runs this process has claimed.

        ``lost``: the claimed runs that had an owner before. This owner has lost the run. Each entry
        is the id of the run and its new epoch, which is the number of its claim.
        """
        ids = tuple(claim.job.id for claim in claims)
        if ids:
            self._queue.remove(ids)
            self._claimed.update(ids)
            self.notify_lost(lost)
            self._broadcast(ChangedRuns(Notice(claimed_runs=ids, lost_runs=tuple(lost))))

    def on_released(self) -> None:
        """Tell the listener in this process, and all other processes, that this process has
        released its runs."""
        self._claimed.clear()
        self.notify_queued()
        self._broadcast(ChangedRuns(Notice(has_released_runs=True)))

    def on_appended(self, tenant: str, response_id: str, batch: EventBatch) -> None:
        """Deliver a committed batch of events to the readers in this process, and send it to the
        other processes that follow its run."""
        key = (tenant, response_id)
        self.subscriptions.publish(tenant, response_id, batch)
        if key in self._followers:
            is_short = not batch.parts and len(batch.lines) <= _MAX_LINES_BYTES
            lines = batch.lines if is_short else b""
            message = _encode(AppendedBatch(key, batch.first, batch.count, lines))
            for process_id in self._current_followers(key):
                self._peers.send(process_id, message)

    def on_run_ended(self, tenant: str, response_id: str) -> None:
        """Tell the readers in this process, and all other processes, that a run has ended or was
        deleted."""
        key = (tenant, response_id)
        self._claimed.discard(response_id)
        self._followers.pop(key, None)
        self.subscriptions.mark_stale([key])
        self._broadcast(ChangedRuns(Notice(ended_runs=(key,))))

    # --- following -------------------------------------------------------------------------------

    def _follow(self, key: _Key) -> None:
        """Follow a run from now on, because a reader in this process waits for it. Do nothing if
        this process itself executes the run."""
        if key not in self._followed and key[1] not in self._claimed:
            self._followed[key] = False
            self._broadcast(FollowRequest(key))
            self._looks.start_once("look", self._look_regularly)

    async def _look_regularly(self) -> None:
        """Every few seconds, tell the other processes again which runs this process follows. If a
        followed run got no batch since the last time, make the readers of the run read the
        database."""
        while self._followed:
            await asyncio.sleep(_LOOK_S)
            subscribed = set(self.subscriptions.subscribed_runs())
            for key in self._followed.keys() - subscribed:
                del self._followed[key]
            for key, has_news in self._followed.items():
                self._broadcast(FollowRequest(key))
                if not has_news:
                    self.subscriptions.mark_stale([key])
                self._followed[key] = False

    def _current_followers(self, key: _Key) -> list[str]:
        now = asyncio.get_running_loop().time()
        followers = self._followers[key]
        for process_id in [name for name, until in followers.items() if until < now]:
            del followers[process_id]
        if not followers:
            del self._followers[key]
        return list(followers)

    def _broadcast(self, message: PeerMessage) -> None:
        if not self._peers.is_alone:
            self._peers.broadcast(_encode(message))

    # --- changes by other processes --------------------------------------------------------------

    def _on_message(self, sender: str, frame: bytes) -> None:
        match _decode(frame):
            case ChangedRuns(notice):
                self._on_notice(notice)
            case FollowRequest(key):
                followers = self._followers.setdefault(key, {})
                is_new = sender not in followers
                followers[sender] = asyncio.get_running_loop().time() + _FOLLOWS_S
                if is_new:
                    self._peers.send(sender, _encode(FollowReply(key)))
            case FollowReply(key):
                self.subscriptions.mark_stale([key])
            case AppendedBatch(key, first, count, lines):
                if key in self._followed:
                    self._followed[key] = True
                if lines:
                    batch = EventBatch(first=first, count=count, lines=lines)
                    self.subscriptions.publish(*key, batch)
                else:
                    self.subscriptions.mark_stale([key])

    def _on_notice(self, notice: Notice) -> None:
        self.subscriptions.mark_stale(notice.ended_runs)
        for key in notice.ended_runs:
            self._followers.pop(key, None)
        lost = {run_id for run_id, _ in notice.lost_runs}
        self._claimed -= lost
        self._queue.on_notice(notice, can_claim=self.listener is not None)
        self.notify_lost(notice.lost_runs)
        if lost:  # readers in this process follow the lost runs from now on
            runs = self.subscriptions.subscribed_runs()
            self.subscriptions.mark_stale([key for key in runs if key[1] in lost])

    def _on_gone(self, process_id: str) -> None:
        for followers in self._followers.values():
            followers.pop(process_id, None)
