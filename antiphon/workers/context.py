"""The resources that a worker shares with the other processes of its server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import structlog
from msgspec.structs import replace

from antiphon.config.settings import Settings
from antiphon.errors import AntiphonError, Overloaded
from antiphon.http.metric_sums import MetricSnapshot
from antiphon.http.metrics import Metrics
from antiphon.ipc.client import CallClient
from antiphon.ipc.server import CallServer
from antiphon.models.hosted_models import HostedModels
from antiphon.tools.containers.hosted import connect_to_host
from antiphon.wire.admin.server_info import ProcessHealth

from .setup import ChildSetup
from .shared_admission import SharedAdmission

_log = structlog.get_logger(__name__)

#: Timeout in seconds for the supervisor's answer about the state of its processes.
_PROCESSES_S = 1.0


class WorkerContext:
    """The connections of one worker to the other processes of its server. Made by ``open``.
    ``hub``: client for RPC calls to the supervisor. ``models``: access to the models that another
    process hosts. ``containers``: client for RPC calls to the process that owns the containers."""

    def __init__(
        self,
        setup: ChildSetup,
        hub: CallClient,
        models: HostedModels | None,
        containers: CallClient | None,
    ) -> None:
        self.number = setup.number
        self.folder = setup.folder
        #: Client for calls to the process that owns the containers; None without such a process.
        self.containers = containers
        #: The models that another process hosts for all workers; None without such a process.
        self.models = models
        self._hub = hub

    @classmethod
    @asynccontextmanager
    async def open(cls, setup: ChildSetup) -> AsyncIterator[WorkerContext]:
        """Connect to the supervisor and to the processes that own models and containers. Raises
        ``Overloaded`` if the supervisor is gone."""
        async with AsyncExitStack() as stack:
            hub = CallClient(setup.folder.hub, on_lost=_supervisor_is_gone)
            await hub.connect()
            stack.callback(hub.close)
            models = None
            if setup.has_host:
                models = await stack.enter_async_context(HostedModels.open(setup.folder.host))
            containers = None
            if setup.has_containers:
                containers = connect_to_host(setup.folder.containers)
                stack.callback(containers.close)
            yield cls(setup, hub, models, containers)

    def own_settings(self, settings: Settings) -> Settings:
        """Return the settings of this worker. If a limit is divided among the workers, the returned
        settings contain only this worker's share."""
        runs, more_runs = divmod(settings.max_background_runs, settings.workers)
        return replace(settings, max_background_runs=runs + (self.number <= more_runs))

    def admission(
        self, clock: Callable[[], float], on_admitted: Callable[[float], None]
    ) -> SharedAdmission:
        """Return the admission control of this worker. ``clock``, ``on_admitted``: as in
        ``SharedAdmission``."""
        return SharedAdmission(self._hub, clock=clock, on_admitted=on_admitted)

    async def processes(self) -> tuple[ProcessHealth, ...]:
        """Return the state of all processes of the server. Return an empty tuple if the supervisor
        does not answer."""
        with suppress(AntiphonError, TimeoutError):
            async with asyncio.timeout(_PROCESSES_S):
                found: tuple[ProcessHealth, ...] = await self._hub.call(
                    "processes", returns=tuple[ProcessHealth, ...]
                )
                return found
        return ()

    @asynccontextmanager
    async def share_metrics(self, metrics: Metrics) -> AsyncIterator[None]:
        """Async context manager that shares metrics. Within the ``async with`` block, other workers
        can read the metrics of this worker. A client that reads the metrics of the server from this
        worker gets the sums over all workers."""
        server = CallServer(lambda: _MetricsSession(metrics))
        await server.open(self.folder.worker(self.number))
        metrics.collect_from(self._collect)
        try:
            yield
        finally:
            await server.close()

    async def _collect(self, own: tuple[MetricSnapshot, ...]) -> tuple[MetricSnapshot, ...]:
        try:
            found: tuple[MetricSnapshot, ...] = await self._hub.call(
                "metrics", self.number, own, returns=tuple[MetricSnapshot, ...]
            )
        except AntiphonError:
            _log.warning("the metrics of other workers cannot be read")
            return own
        return found


class _MetricsSession:
    """The methods that the supervisor may call in a worker by RPC."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def metrics(self) -> tuple[MetricSnapshot, ...]:
        """Return the metrics of this worker."""
        return self._metrics.snapshot()


def _supervisor_is_gone() -> Overloaded:
    return Overloaded("The server is stopping.", retry_after_s=1, status=503)
