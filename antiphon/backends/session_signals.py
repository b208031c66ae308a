"""Tells engines what has happened to conversations, so that they can free or keep their caches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from antiphon.inference.sampling import SessionSignal
from antiphon.support.tasks import BackgroundTasks

from .catalog import CatalogModel

_log = structlog.get_logger(__name__)

#: Time limit in seconds for one engine. Signals are hints, so a slow engine is not waited for.
_WAIT_S = 2.0


class SessionSignals:
    """Sends signals to the engines of all models, in the background. ``models``: returns the
    models. ``erase``: deletes kept states of models that are not loaded. ``mark``: records the
    tenant and the id of a conversation whose states will be deleted. Both block."""

    def __init__(
        self,
        models: Callable[[], Iterable[CatalogModel]],
        erase: Callable[[SessionSignal], None] | None = None,
        mark: Callable[[str, str], None] | None = None,
    ) -> None:
        self._mark = mark
        self._models = models
        self._erase = erase
        self._tasks = BackgroundTasks("session signal")

    def send(self, signal: SessionSignal) -> None:
        """Send a signal. Returns immediately."""
        self._tasks.start(self._send(signal))

    async def announce(self, tenant: str, owner: str) -> None:
        """Record that a part of a conversation will be deleted. Then its kept states are deleted
        even if the server is killed before it sends the signal."""
        if self._mark is not None:
            await asyncio.to_thread(self._mark, tenant, owner)

    async def drain(self) -> None:
        """Wait until all signals are sent, or their time is over."""
        await self._tasks.wait()

    async def _send(self, signal: SessionSignal) -> None:
        backends = {id(model.backend): model.backend for model in self._models()}
        for backend in backends.values():
            try:
                async with asyncio.timeout(_WAIT_S):
                    await backend.on_session(signal)
            except Exception as error:
                _log.info("an engine was not told about a conversation", reason=str(error))
        if self._erase is not None and signal.event == "deleted":
            await asyncio.to_thread(self._erase, signal)
