"""Reloads of the settings that a request has caused: of one process, or of all of a server."""

from __future__ import annotations

import asyncio
import os
import signal

from antiphon.config.reload import SettingsReloader

#: Seconds after which the processes of a server should have reloaded the settings.
_TIMEOUT_S = 60.0


class ServerReloads:
    """Reloads the settings of a whole server. ``is_worker``: whether this process is one of
    several. The supervisor then makes all of them reload the settings, also those that host
    models."""

    def __init__(self, *, is_worker: bool) -> None:
        self._is_worker = is_worker
        self._reloader: SettingsReloader | None = None
        self._next: asyncio.Future[bool] | None = None

    def use(self, reloader: SettingsReloader) -> None:
        """Set the reloader of this process. It does not exist yet when the app is built."""
        self._reloader = reloader

    @property
    def is_possible(self) -> bool:
        """Whether the server can reload its settings."""
        return self._reloader is not None

    def on_reloaded(self, is_valid: bool) -> None:
        """Called after a reload of this process."""
        if self._next is not None and not self._next.done():
            self._next.set_result(is_valid)

    async def reload(self) -> bool:
        """Reload the settings. Returns False and changes nothing if they are not valid."""
        assert self._reloader is not None
        if not self._is_worker:
            return await self._reloader.reload()
        if not await self._reloader.are_valid():
            return False
        self._next = asyncio.get_running_loop().create_future()
        os.kill(os.getppid(), signal.SIGHUP)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._next
        except TimeoutError:
            return False
