"""The supervisor. It binds the port, runs the workers, and holds the state that the workers share.

It serves no requests and runs no models, so neither requests nor models can crash it.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

from msgspec.structs import replace

from antiphon.config.load import LoadedSettings, SettingsSources
from antiphon.config.reload import SettingsReloader
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.http.server.listening import bind
from antiphon.http.server.serve import has_terminal
from antiphon.ipc.server import CallServer
from antiphon.limits.requests import RequestLimits
from antiphon.models.hosted_models import is_hosted
from antiphon.models.packaged_embedder import with_packaged_embedder
from antiphon.support.log import Log
from antiphon.support.logs import LogLevel
from antiphon.support.tasks import BackgroundTasks
from antiphon.workers.setup import StartReport

from .child import Child
from .hub import WorkerHub
from .setup import (
    CHILD_END_S,
    ChildReport,
    ChildSetup,
    ProcessRole,
    ReloadReport,
    StartFailure,
    WorkerFolder,
)

#: Timeout in seconds for the host process to load new models.
_RELOAD_S = 1800.0
_FIRST = asyncio.FIRST_COMPLETED


class WorkerSupervisor:
    """Runs ``settings.workers`` workers, and the processes that own the models and the containers.

    - ``loaded``: the settings that were loaded.
    - ``sources``: where all processes read the settings.
    - ``announce``: called when all processes have started.
    - ``limits``: returns the request limits for all workers together.
    - ``level``: the log level.
    - ``has_containers``: whether the server runs code in containers.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        sources: SettingsSources,
        announce: Callable[[StartReport], None],
        *,
        limits: Callable[[Settings], RequestLimits],
        log: Log,
        level: LogLevel,
        has_containers: bool,
    ) -> None:
        self._settings = with_packaged_embedder(loaded.settings)
        self._sources = sources
        self._announce = announce
        self._log = log
        self._has_containers = has_containers
        self._folder = WorkerFolder("")
        self._sockets: list[list[socket.socket]] = []
        self._workers: list[Child] = []
        #: The process that hosts the models for all workers. None if the server hosts no models.
        self._host: Child | None = None
        #: The process that owns the containers. None if the server runs no code in containers.
        self._containers: Child | None = None
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._serving: StartReport | None = None
        self._is_announced = False
        self._has_terminal = has_terminal()
        self._limits = limits
        self._hub = WorkerHub(
            limits(loaded.settings), lambda: tuple(each.health for each in self._children)
        )
        self._reloads = SettingsReloader(loaded, sources, self._apply, log=log, level=level)
        self._host_reloaded: asyncio.Future[bool] | None = None

    async def run(self) -> None:
        """Run the processes of the server until SIGTERM or SIGINT arrives. Raises ``SetupError`` if
        a process cannot start when the server starts. If a process cannot start later, this is only
        logged."""
        async with AsyncExitStack() as stack:
            self._folder = WorkerFolder(tempfile.mkdtemp(prefix="antiphon-"))
            stack.callback(shutil.rmtree, self._folder.path, ignore_errors=True)
            stack.callback(self._close_sockets)
            self._bind()
            server = CallServer(self._hub.session)
            await server.open(self._folder.hub)
            stack.push_async_callback(server.close)
            if any(map(is_hosted, self._settings.models.values())):
                self._host = Child("host", self._setup_of("host"), self._on_report)
            if self._has_containers:
                setup = self._setup_of("containers")
                self._containers = Child("containers", setup, self._on_report)
            self._workers = [
                Child(
                    f"worker {number}",
                    self._setup_of("worker", number),
                    self._on_report,
                    partial(self._hub.on_worker_ended, number),
                )
                for number in range(1, self._settings.workers + 1)
            ]
            self._hub.open([self._folder.worker(n + 1) for n in range(len(self._workers))])
            stack.callback(self._hub.close)
            await self._run_children()

    # --- the sockets -----------------------------------------------------------------------------

    def _bind(self) -> None:
        """Open the listening sockets. On Linux, each worker gets a socket of its own, and the
        operating system distributes connections among the sockets. So no worker takes more than its
        share of connections."""
        settings = self._settings
        spreads = sys.platform == "linux"
        further = [settings.ollama_port] if settings.ollama_port else []
        first = bind(settings.host, settings.port, *further, reuse_port=spreads)
        self._sockets = [first]
        ports = (first[0].getsockname()[1], *further)
        for _ in range(1, settings.workers):
            more = bind(settings.host, *ports, reuse_port=True) if spreads else first
            self._sockets.append(more)

    def _close_sockets(self) -> None:
        for sockets in self._sockets:
            for each in sockets:
                each.close()

    # --- the children ----------------------------------------------------------------------------

    def _setup_of(self, role: ProcessRole, number: int = 0) -> Callable[[], ChildSetup]:
        def setup() -> ChildSetup:
            sockets: Sequence[socket.socket] = self._sockets[number - 1] if number else ()
            return ChildSetup(
                role=role,
                number=number,
                sources=self._sources,
                folder=self._folder,
                listeners=tuple(each.fileno() for each in sockets),
                port=self._sockets[0][0].getsockname()[1],
                has_host=self._host is not None,
                has_containers=self._containers is not None,
            )

        return setup

    @property
    def _hosts(self) -> list[Child]:
        """The processes that own the models and the containers. When the server ends, these
        processes are stopped after the workers, because the workers need them."""
        return [each for each in (self._host, self._containers) if each is not None]

    @property
    def _children(self) -> list[Child]:
        return [*self._workers, *self._hosts]

    def _on_report(self, report: ChildReport) -> None:
        if isinstance(report, StartFailure):
            if not self._is_announced and not self._failure.done():
                self._failure.set_exception(SetupError(report.reason))
            else:
                self._log.error("a process of the server cannot start", reason=report.reason)
            return
        if isinstance(report, ReloadReport):
            if self._host_reloaded is not None and not self._host_reloaded.done():
                self._host_reloaded.set_result(report.is_valid)
            return
        if report.models:
            earlier = None if self._serving is None else self._serving.first_key
            self._serving = replace(report, first_key=report.first_key or earlier)
        is_complete = all(each.has_started.is_set() for each in self._children)
        if self._serving is not None and is_complete and not self._is_announced:
            self._is_announced = True
            self._announce(self._serving)

    async def _run_children(self) -> None:
        hosts, workers = BackgroundTasks("host process"), BackgroundTasks("worker process")
        for each in self._hosts:
            hosts.start(each.run())
        running = [workers.start(each.run()) for each in self._workers]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        try:
            await asyncio.wait((asyncio.gather(*running), self._failure), return_when=_FIRST)
        finally:
            self._stop()
            await _end(self._workers, workers, self._settings.drain_s + CHILD_END_S)
            for child in self._hosts:
                child.stop()
            await _end(self._hosts, hosts, CHILD_END_S)
        if self._failure.done():
            self._failure.result()

    def _stop(self) -> None:
        """Stop accepting connections, and tell the workers to finish their work and end. If this is
        called a second time, the workers end without finishing their work."""
        self._close_sockets()
        for child in self._workers:
            child.stop()

    def _on_hangup(self) -> None:
        """Handle the signal SIGHUP. If the server's terminal was closed, stop the server. Otherwise
        reload the settings."""
        if has_terminal() == self._has_terminal:
            self._reloads.start()
        else:
            self._stop()

    async def _apply(self, loaded: LoadedSettings) -> None:
        """Apply new settings to all processes. The process that hosts the models applies them
        first, because workers get the new models from it. Raises ``SetupError``."""
        if self._host is None and any(map(is_hosted, loaded.settings.models.values())):
            raise SetupError("models: the first model that this server runs itself needs a restart")
        if self._host is not None:
            self._host_reloaded = asyncio.get_running_loop().create_future()
            self._host.signal(signal.SIGHUP)
            try:
                is_valid = await asyncio.wait_for(self._host_reloaded, _RELOAD_S)
            except TimeoutError:
                is_valid = False
            if not is_valid:
                raise SetupError("the host of the models cannot apply them")
        self._hub.admission.update(self._limits(loaded.settings))
        for child in (*self._workers, *([] if self._containers is None else [self._containers])):
            child.signal(signal.SIGHUP)


async def _end(children: Sequence[Child], tasks: BackgroundTasks, wait_s: float) -> None:
    """Wait until the children, which have been told to stop, have ended. ``tasks``: the tasks that
    run the children. If a child does not end within ``wait_s`` seconds, kill all children that
    still run."""
    if not await tasks.wait(wait_s):
        for child in children:
            child.signal(signal.SIGKILL)
        await tasks.wait()
