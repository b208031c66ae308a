"""The hub: state in the supervisor's memory that all workers of a server share. It consists of the
metrics of the workers, and of slots. Each request holds a slot while it runs. So the number of
slots limits how many requests run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from antiphon.errors import RunError
from antiphon.http.metric_sums import MetricSnapshot, sum_metrics
from antiphon.ipc.client import CallClient
from antiphon.limits.admission import admission_queue
from antiphon.limits.requests import RequestLimits
from antiphon.wire.admin.server_info import ProcessHealth

#: Timeout in seconds for a worker to return its metrics.
_METRICS_S = 2.0


class SlotGrant(IntEnum):
    """Whether a slot is granted immediately.

    - ``NONE``: no slot is free.
    - ``ONCE``: the slot is granted for one request.
    - ``REUSABLE``: the slot is granted, and most slots are free. So the worker may keep the slot
      for a moment after the request, for further requests of the same tenant.
    """

    NONE = 0
    ONCE = 1
    REUSABLE = 2


class WorkerHub:
    """The state that all workers share. Each worker calls it by RPC through a ``HubSession``.
    ``limits``: the request limits for all workers together. ``processes``: returns the state of all
    processes of the server."""

    def __init__(
        self,
        limits: RequestLimits,
        processes: Callable[[], tuple[ProcessHealth, ...]] = tuple,
    ) -> None:
        self.admission = admission_queue(limits)
        self.processes = processes
        self._workers: dict[int, CallClient] = {}
        #: The last metrics of each running worker, and the sums over all workers that have ended.
        self._last: dict[int, tuple[MetricSnapshot, ...]] = {}
        self._ended: tuple[MetricSnapshot, ...] = ()

    def open(self, workers: Sequence[Path]) -> None:
        """Set the paths of the workers' sockets. Workers are numbered from 1. The hub connects to a
        worker when it first needs the worker's metrics."""
        self._workers = {number: CallClient(path) for number, path in enumerate(workers, 1)}

    def close(self) -> None:
        """Close the connections to the workers."""
        for client in self._workers.values():
            client.close()

    def session(self) -> HubSession:
        """Return a session object for one worker. The worker may call the methods of this
        object."""
        return HubSession(self)

    def on_worker_ended(self, number: int) -> None:
        """Add the last known metrics of an ended worker to the sums over all ended workers. So the
        totals do not decrease when a worker ends. ``number``: the number of the worker."""
        if (last := self._last.pop(number, None)) is not None:
            self._ended = sum_metrics([], [self._ended, last])

    async def metrics(
        self, caller: int, own: tuple[MetricSnapshot, ...]
    ) -> tuple[MetricSnapshot, ...]:
        """Return the metrics of all workers, added up. ``caller``: the number of the worker that
        calls this method. ``own``: the metrics of this worker."""
        self._last[caller] = own
        others = [number for number in self._workers if number != caller]
        await asyncio.gather(*map(self._read_metrics, others))
        return sum_metrics(self._last.values(), [self._ended])

    async def _read_metrics(self, number: int) -> None:
        """Read the metrics of a worker. If the worker does not answer, its last metrics are
        kept."""
        with suppress(RunError, TimeoutError):
            async with asyncio.timeout(_METRICS_S):
                self._last[number] = await self._workers[number].call(
                    "metrics", returns=tuple[MetricSnapshot, ...]
                )


class HubSession:
    """The methods of the supervisor that one worker may call. Through them, the worker takes and
    frees slots, and reads the metrics and the states of all processes. When the worker disconnects,
    all its slots are freed."""

    def __init__(self, hub: WorkerHub) -> None:
        self._hub = hub
        #: The tenant of each slot, by the slot's number.
        self._slots: dict[int, str] = {}

    def try_enter(self, slot: int, tenant: str) -> SlotGrant:
        """Take a slot for a request if a slot is free. Do not wait for one. Return whether the slot
        was granted, and whether the worker may use it again. ``slot``: a number that the worker has
        chosen for the slot. ``tenant``: the tenant of the request."""
        queue = self._hub.admission
        if not queue.try_acquire(tenant):
            return SlotGrant.NONE
        self._slots[slot] = tenant
        return SlotGrant.REUSABLE if queue.is_half_free(tenant) else SlotGrant.ONCE

    async def enter(self, slot: int, tenant: str) -> None:
        """Take a slot for a request. Wait until a slot is free. Raises ``Overloaded`` if too many
        requests wait. ``slot``: a number that the worker has chosen for the slot. ``tenant``: the
        tenant of the request."""
        await self._hub.admission.acquire(tenant)
        self._slots[slot] = tenant

    def leave(self, slot: int) -> None:
        """Free a slot. Do nothing if the worker does not hold this slot."""
        if (tenant := self._slots.pop(slot, None)) is not None:
            self._hub.admission.release(tenant)

    async def metrics(
        self, worker: int, own: tuple[MetricSnapshot, ...]
    ) -> tuple[MetricSnapshot, ...]:
        """Return the metrics of all workers, added up. ``worker``: the number of the worker that
        calls this method. ``own``: the metrics of this worker."""
        return await self._hub.metrics(worker, own)

    def processes(self) -> tuple[ProcessHealth, ...]:
        """Return the state of all processes of the server."""
        return self._hub.processes()

    def on_disconnect(self) -> None:
        """Free all slots that the worker still holds."""
        for slot in tuple(self._slots):
            self.leave(slot)
