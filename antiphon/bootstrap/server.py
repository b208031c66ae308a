"""Build a whole server from the settings: sockets, store, models, service and app.

This is the only module that knows all parts of a server. It also gives the other parts a clock and
a source of random ids.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct, structs
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.attachments.background_reader import BackgroundReader
from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Fetcher
from antiphon.backends.catalog import ModelCatalog
from antiphon.blobs.base import Blobs
from antiphon.blobs.collector import BlobCollector
from antiphon.blobs.locations import open_blobs
from antiphon.config.keys import ApiKey
from antiphon.config.load import LoadedSettings, SettingsSources
from antiphon.config.report import report_settings
from antiphon.config.settings import Settings, runtime_folder
from antiphon.config.tenants import Tenant
from antiphon.engines.llama.zero_pages import (
    MemoryRange,
    new_ranges,
    release_zero_pages,
    writable_ranges,
)
from antiphon.errors import SetupError
from antiphon.http import uvicorn_server
from antiphon.http.admission import Admission, admission_queue
from antiphon.http.app import create_app
from antiphon.http.metrics import Metrics
from antiphon.http.middleware import auth as guard
from antiphon.ipc.http_calls import HttpCaller
from antiphon.ipc.http_endpoint import HttpCallEndpoint, is_call
from antiphon.ipc.server import CallServer
from antiphon.ipc.signatures import CallSigner
from antiphon.limits.clients import ClientLimits
from antiphon.limits.fair_limiter import tenant_share
from antiphon.limits.quotas import Quotas, TenantQuotas
from antiphon.models import catalog
from antiphon.models.download import progress_bar
from antiphon.models.packaged_embedder import NO_EMBEDDINGS, with_packaged_embedder
from antiphon.resources.admin.api_keys import ApiKeys
from antiphon.resources.files import Files
from antiphon.resources.prompts import Prompts
from antiphon.resources.rerankers import Rerankers
from antiphon.resources.skills import Skills
from antiphon.retrieval.vector_search import require_numpy
from antiphon.runs.background.worker import LeaseConfig
from antiphon.runs.service import OptionalFeatures, Policy, RunDependencies, Service
from antiphon.runs.tool_loop.executor import ToolLimits
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.security.ssrf import is_loopback, parse_network
from antiphon.store import is_postgres, open_store
from antiphon.store.base import Retention, Store
from antiphon.store.clock import Clock, StoreClock
from antiphon.store.store_observer import observe_store
from antiphon.store.sweeper import Sweeper
from antiphon.support.installation import antiphon_command
from antiphon.support.logs import LogLevel, capture_libraries, open_log
from antiphon.support.loop_watchdog import LoopWatchdog
from antiphon.tools.base import ToolProvider
from antiphon.tools.containers.local import LocalContainers
from antiphon.tools.containers.registry import ContainerRegistry
from antiphon.tools.containers.relay import ContainerRelay
from antiphon.tracing.base import Tracer
from antiphon.tracing.metrics import MetricsExporter
from antiphon.webhooks.deliver import WebhookDeliveries, WebhookSender
from antiphon.wire.admin.settings import SettingEntry, SettingList
from antiphon.wire.object_ids import IdMaker, new_id
from antiphon.wire.parsing.json_body import BodyLimits
from antiphon.wire.tools import HostedTool
from antiphon.workers.context import WorkerContext
from antiphon.workers.setup import CHILD_END_S, AnnouncedModel, ChildSetup, StartReport

from .capabilities import Capability, list_capabilities
from .reload import SettingsReloader
from .tool_factories import (
    ContainerDependencies,
    ContainerSetup,
    ToolDependencies,
    open_containers,
    open_reader,
    open_tools,
    prepare_control_groups,
    runs_code,
)

__all__ = [
    "FILES_IN_STORE",
    "AnnouncedModel",
    "App",
    "StartReport",
    "address",
    "files_blobs",
    "find_capabilities",
    "open_app",
    "open_encryptor",
    "open_fetcher",
    "page_is_served",
    "request_limits",
    "serve",
    "serve_containers",
    "serve_host",
    "serve_with_workers",
    "serve_worker",
]


#: Values of ``host`` that mean all addresses of a machine → loopback address for the same machine.
EVERY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
#: Maximum number of bytes of a call between servers, without the file that the call contains.
_CALL_BYTES = 1 << 20
#: Value of the setting ``files`` for contents in the store itself.
FILES_IN_STORE = "store"
#: Maximum number of PostgreSQL connections of the process that owns containers. It needs the store
#: only to start and end containers and to read files.
_CONTAINER_CONNECTIONS = 2


class App:
    """Antiphon as an ASGI app. ``service``: the operations of the API. ``models``: the served
    models. ``capabilities``: the features of this server. ``rebuild``: a function that applies new
    settings and returns a new ASGI app. ``calls``: the ASGI app that answers RPC calls of other
    Antiphon servers."""

    def __init__(
        self,
        asgi: ASGIApp,
        service: Service,
        models: catalog.Catalog,
        capabilities: tuple[Capability, ...] = (),
        rebuild: Callable[[LoadedSettings], Awaitable[ASGIApp]] | None = None,
        calls: ASGIApp | None = None,
    ) -> None:
        self._asgi = asgi
        self._calls = calls
        self._rebuild = rebuild
        self.capabilities = capabilities
        self.service = service
        self.models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._calls is not None and is_call(scope):
            await self._calls(scope, receive, send)
        else:
            await self._asgi(scope, receive, send)

    async def reload(self, loaded: LoadedSettings) -> None:
        """Apply new settings to later requests. Only the settings in ``RELOADED_SETTINGS`` are
        applied, such as keys, limits and models. If the new settings are not valid, raises
        ``SetupError`` and changes nothing.
        """
        if self._rebuild is not None:
            self._asgi = await self._rebuild(loaded)


async def serve(
    settings: Settings,
    announce: Callable[[StartReport], None] = lambda serving: None,
    *,
    warnings: Iterable[str] = (),
    origins: Mapping[str, str] | None = None,
    sources: SettingsSources | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT stops the server.

    ``announce`` is called when the server is ready to answer requests. Requests that arrive earlier
    wait. The process logs to standard error. ``warnings``: warnings about the settings, which are
    logged. ``origins``: see ``open_app``. ``sources``: where the settings are read again after a
    SIGHUP. If ``sources`` is None, a SIGHUP stops the server. Raises ``SetupError``.
    """
    level = LogLevel(settings.log_level)
    log = _check(settings, warnings, level)
    sockets = uvicorn_server.bind(settings.host, settings.port)
    async with AsyncExitStack() as stack:
        for listener in sockets:
            stack.callback(listener.close)
        loaded = LoadedSettings(settings, origins or {})
        reload = None if sources is None else _Reload(sources, level)
        await _serve_sockets(loaded, sockets, announce, log=log, reload=reload)


async def serve_with_workers(
    loaded: LoadedSettings, sources: SettingsSources, announce: Callable[[StartReport], None]
) -> None:
    """Serve with ``settings.workers`` processes until SIGTERM or SIGINT. ``sources``: where each
    process loads the settings (file, environment, flags). Raises ``SetupError``."""
    from antiphon.workers.shared_store import shared_store
    from antiphon.workers.supervisor import WorkerSupervisor

    settings = loaded.settings
    level = LogLevel(settings.log_level)
    log = _check(settings, loaded.warnings, level)
    prepare_control_groups(settings)
    async with shared_store(settings.store):
        supervisor = WorkerSupervisor(
            loaded,
            sources,
            announce,
            limits=request_limits,
            log=log,
            level=level,
            has_containers=runs_code(settings),
        )
        await supervisor.run()


async def serve_worker(setup: ChildSetup, announce: Callable[[StartReport], None]) -> None:
    """Run a worker process: serve HTTP requests until SIGTERM. Raises ``SetupError``."""
    loaded = setup.sources.load()
    uvicorn_server.raise_file_limit()
    level = LogLevel(loaded.settings.log_level)
    log = _open_log(loaded.settings, level).bind(worker=setup.number)
    capture_libraries(log)
    async with WorkerContext.open(setup) as worker:
        await _serve_sockets(
            loaded,
            [socket.socket(fileno=number) for number in setup.listeners],
            announce,
            log=log,
            worker=worker,
            reload=_Reload(setup.sources, level),
        )


async def serve_host(
    setup: ChildSetup,
    announce: Callable[[StartReport], None],
    on_reloaded: Callable[[bool], None] = lambda is_valid: None,
) -> None:
    """Run the host process, which loads the models and runs them for all worker processes, until
    SIGTERM. A SIGHUP reloads the settings, and then ``on_reloaded`` is called. Its argument is True
    if the new settings are valid. Raises ``SetupError``."""
    from antiphon.models.model_host import ModelHostSession

    loop = asyncio.get_running_loop()
    loaded = setup.sources.load()
    level = LogLevel(loaded.settings.log_level)
    log = _open_log(loaded.settings, level).bind(process="host")
    capture_libraries(log)
    hosted: asyncio.Future[catalog.Catalog] = loop.create_future()
    server = CallServer(lambda: ModelHostSession(hosted))
    async with AsyncExitStack() as stack:
        await server.open(setup.folder.host)
        stack.push_async_callback(server.close)
        ranges = writable_ranges()
        models = await _load_models(with_packaged_embedder(loaded.settings))
        release_zero_pages(new_ranges(ranges, writable_ranges()))
        stack.push_async_callback(models.close)
        hosted.set_result(models)

        async def apply(new: LoadedSettings) -> None:
            await _reload_models(models, with_packaged_embedder(new.settings), None)

        reloads = SettingsReloader(
            loaded, setup.sources, apply, log=log, level=level, on_reloaded=on_reloaded
        )
        await _answer_calls(server, reloads, announce, loaded.settings)


async def serve_containers(setup: ChildSetup, announce: Callable[[StartReport], None]) -> None:
    """Run the process that keeps the containers (environments in which tools run code) of all
    worker processes, until SIGTERM. Raises ``SetupError``."""
    from antiphon.tools.containers.hosted import ContainerHostSession

    loop = asyncio.get_running_loop()
    loaded = setup.sources.load()
    settings = loaded.settings
    level = LogLevel(settings.log_level)
    log = _open_log(settings, level).bind(process="containers")
    capture_libraries(log)
    opened: asyncio.Future[LocalContainers | str] = loop.create_future()
    server = CallServer(lambda: ContainerHostSession(opened))
    async with AsyncExitStack() as stack:
        await server.open(setup.folder.containers)
        stack.push_async_callback(server.close)
        containers = await _open_hosted_containers(stack, setup, settings, log)
        opened.set_result(containers.local or containers.reason)

        async def apply(new: LoadedSettings) -> None:
            if containers.local is not None:
                containers.local.quotas.update(_quotas(new.settings))

        reloads = SettingsReloader(loaded, setup.sources, apply, log=log, level=level)
        await _answer_calls(server, reloads, announce, settings)


async def _open_hosted_containers(
    stack: AsyncExitStack, setup: ChildSetup, settings: Settings, log: Any
) -> ContainerSetup:
    """Open the store, and prepare this process to run the containers of all workers. When ``stack``
    is closed, the containers and the store are closed."""
    store = await open_store(
        settings.store,
        peers=None if is_postgres(settings.store) else setup.folder.peers,
        connections=min(_CONTAINER_CONNECTIONS, settings.store_connections),
        listen_url=settings.store_listen_url,
    )
    stack.push_async_callback(store.close)
    clock = StoreClock(store, wall=_wall_clock, monotonic=time.monotonic)
    await clock.synchronize()
    blobs = await files_blobs(settings, store, await open_encryptor(settings, store))
    files = Files(store, clock=clock, ids=_new_id, blobs=blobs)
    url = _peer_url(settings, setup.port)
    relay, _ = await _open_relay(stack, settings, store, setup.folder.peers, url, clock, log)
    parts = _container_parts(settings, store, files, clock, relay)
    return await stack.enter_async_context(open_containers(settings, log, parts))


async def _answer_calls(
    server: CallServer,
    reloads: SettingsReloader,
    announce: Callable[[StartReport], None],
    settings: Settings,
) -> None:
    """In the host process of the models or of the containers, answer the workers' RPC calls until
    the workers no longer need this process.

    A SIGTERM does not end the host process immediately: a service manager may send SIGTERM to all
    processes together, and the workers need the host process until their running requests have
    finished. So after a SIGTERM, this function waits until the last worker has ended, but at most
    ``drain_s`` + ``CHILD_END_S`` seconds.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, reloads.start)
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    announce(StartReport(url="", models=()))
    await stopped.wait()
    await server.drain(settings.drain_s + CHILD_END_S)


class _Reload(Struct, frozen=True):
    """The data for reloads of the settings: the sources of the settings, and the log level of the
    process."""

    sources: SettingsSources
    level: LogLevel


def _check(settings: Settings, warnings: Iterable[str], level: LogLevel) -> Any:
    """Check the settings before the server starts, raise the process's limit of open files, and set
    up logging. Returns the logger of the process. Raises ``SetupError``.

    ``warnings``: messages about deprecated settings, which are logged.
    """
    _check_exposure(settings)
    Prompts(settings.prompts_dir, ids=_new_id).check()
    uvicorn_server.raise_file_limit()
    log = _open_log(settings, level)
    capture_libraries(log)
    for line in warnings:
        log.warning("deprecated setting", why=line)
    return log


async def _serve_sockets(
    loaded: LoadedSettings,
    sockets: Sequence[socket.socket],
    announce: Callable[[StartReport], None],
    *,
    log: Any,
    worker: WorkerContext | None = None,
    reload: _Reload | None = None,
) -> None:
    """Build the app and serve it over HTTP on these sockets until SIGTERM or SIGINT. ``worker``:
    the connections of a worker process to the server's other processes; None if the server has a
    single process. ``reload``: what a reload of the settings after a SIGHUP needs; None disables
    reloads."""
    settings = loaded.settings
    port = sockets[0].getsockname()[1]
    url = address(settings.host, port)
    async with open_app(
        settings,
        log=log,
        origins=loaded.origins,
        owns_process=True,
        worker=worker,
        url=_peer_url(settings, port),
    ) as app:

        async def apply(new: LoadedSettings) -> None:
            await app.reload(new)
            if worker is None or worker.number == 1:  # one record for all workers
                await app.service.audit.record("settings.reloaded")

        on_hangup = None
        if reload is not None:
            on_hangup = SettingsReloader(
                loaded, reload.sources, apply, log=log, level=reload.level
            ).start

        def started() -> None:
            if settings.log_format == "json":
                log.info(
                    "serving",
                    url=url,
                    models=[model.name for model in app.models.all()],
                    ready=[each.name for each in app.capabilities if each.problem is None],
                    missing={each.name: each.problem for each in app.capabilities if each.problem},
                )
            models = tuple(
                AnnouncedModel(model.name, model.aliases, model.context_size)
                for model in app.models.all()
            )
            announce(StartReport(url=url, models=models, capabilities=app.capabilities))

        await uvicorn_server.serve(
            app,
            sockets,
            drain=app.service.drain,
            grace_s=settings.drain_s,
            started=started,
            on_hangup=on_hangup,
            max_frame_bytes=settings.max_body_bytes,
            limits=uvicorn_server.ConnectionLimits(
                per_address=settings.max_connections_per_address
            ),
        )


@asynccontextmanager
async def open_app(
    settings: Settings,
    *,
    log: Any = None,
    origins: Mapping[str, str] | None = None,
    owns_process: bool = False,
    worker: WorkerContext | None = None,
    url: str = "",
) -> AsyncIterator[App]:
    """Open store, models, tools and service, and yield the ASGI app that uses them.

    Serve the app with any ASGI server, or mount it in another app. At the end of the block, running
    requests have ``drain_s`` seconds to finish. Then everything is closed.

    - ``log``: a structlog logger. The default logger writes to standard error.
    - ``origins``: name of a setting → origin of its value (a file, a variable, a flag …), as
      ``load`` returns it. The API shows the origins to operators.
    - ``owns_process``: True if no other code runs in this process until the app is open. If it is
      True, memory pages that contain only zeros are returned to the system as soon as the models
      are loaded.
    - ``worker``: the connections of a worker process to the other processes of the server.
    - ``url``: the address at which other servers reach this process; "" if they cannot reach it.
      The setting ``replica_url`` overrides it.

    Raises ``SetupError``.
    """
    log = log or _open_log(settings)
    shown = _shown_settings(settings, origins or {})
    settings = with_packaged_embedder(settings)
    if worker is not None:
        settings = worker.own_settings(settings)
    prompts = Prompts(settings.prompts_dir, ids=_new_id)
    prompts.check()
    ranges = writable_ranges() if owns_process else None
    async with AsyncExitStack() as stack:
        tracer = _tracer(settings)
        stack.push_async_callback(asyncio.to_thread, tracer.close)
        metrics = await _open_metrics(stack, settings, worker)
        store, clock = await _open_store(stack, settings, metrics, worker)
        seal = await open_encryptor(settings, store)
        blobs = await _open_blobs(stack, settings, store, seal, clock, log)
        if (sender := _sender(settings)) is not None:
            stack.push_async_callback(sender.close)
        loading = await stack.enter_async_context(_loading_models(settings, worker))
        if (fetcher := open_fetcher(settings)) is not None:
            stack.push_async_callback(fetcher.close)
        documents = Documents(reader := BackgroundReader(open_reader(settings, log)))
        files = Files(store, clock=clock, ids=_new_id, blobs=blobs)
        relay, calls = await _open_relay(stack, settings, store, _peers(worker), url, clock, log)
        parts = _container_parts(settings, store, files, clock, relay, worker)
        containers, providers = await _tools(stack, settings, parts, seal, fetcher, documents, log)
        models = await _loaded_models(settings, loading, ranges)
        dependencies = _run_dependencies(settings, models, store, seal, tracer, metrics, clock)
        service = Service(
            dependencies,
            OptionalFeatures(
                prompts=prompts,
                fetcher=fetcher,
                documents=documents,
                providers=providers,
                containers=containers,
                blobs=blobs,
            ),
        )
        await stack.enter_async_context(reader)
        await _start_store_tasks(stack, settings, store, sender, clock, log)
        stack.push_async_callback(service.drain, settings.drain_s)
        service.start()
        abilities = list_capabilities(settings, providers, has_fetcher=fetcher is not None)
        admission = _admission(settings, metrics, worker)
        factory = _AppFactory(
            dependencies, models, containers, service, metrics, admission, worker, log
        )
        asgi = factory.build(settings, shown)
        async with _watchdog(settings, log, metrics):
            yield App(asgi, service, models, abilities, factory.rebuild, calls)


async def _open_relay(
    stack: AsyncExitStack,
    settings: Settings,
    store: Store,
    folder: Path | None,
    url: str,
    clock: Clock,
    log: Any,
) -> tuple[ContainerRelay, ASGIApp | None]:
    """Create the relay of containers (environments in which tools run code). Through the relay,
    this process uses containers that belong to other processes.

    Also returns an ASGI app for the opposite direction: it answers RPC calls of other Antiphon
    servers that use containers of this server. The app is None if other servers cannot use these
    containers.

    ``folder``: the folder with the sockets of this server's processes. ``url``: the address at
    which other servers reach this server.
    """
    url = settings.replica_url or url
    if "://" not in settings.store or settings.sandbox == "off":
        return ContainerRelay(folder=folder), None
    if not url or find_spec("aiohttp") is None:
        reason = "replica_url is not set" if not url else "aiohttp is not installed"
        log.info("other servers cannot use the containers of this one", reason=reason)
        return ContainerRelay(folder=folder), None
    secret = (settings.replica_secret or "").encode() or await store.get_or_create_secret(
        "replicas", secrets.token_bytes(32)
    )
    signer = CallSigner(secret, clock=clock, nonce=lambda: secrets.token_hex(16))
    caller = HttpCaller(signer)
    stack.push_async_callback(caller.close)
    relay = ContainerRelay(folder=folder, url=url, caller=caller)
    max_bytes = max(settings.max_file_bytes, settings.max_body_bytes) + _CALL_BYTES
    return relay, HttpCallEndpoint(signer, relay.find, max_bytes=max_bytes)


async def _open_store(
    stack: AsyncExitStack, settings: Settings, metrics: Metrics, worker: WorkerContext | None
) -> tuple[Store, StoreClock]:
    """Open the store and its clock. The metrics measure the store's operations."""
    opened = await open_store(
        settings.store,
        vectors=settings.vectors,
        vectors_key=settings.vectors_key,
        peers=_store_peers(settings, worker),
        connections=settings.store_connections,
        listen_url=settings.store_listen_url,
        bus=settings.bus,
    )
    stack.push_async_callback(opened.close)
    store = observe_store(opened, metrics, time.monotonic)
    clock = StoreClock(store, wall=_wall_clock, monotonic=time.monotonic)
    await clock.synchronize()
    return store, clock


async def _open_blobs(
    stack: AsyncExitStack,
    settings: Settings,
    store: Store,
    encryptor: Encryptor,
    clock: Clock,
    log: Any,
) -> Blobs | None:
    """Open the external storage for the contents of files and of large responses. Start a task that
    deletes unneeded contents from this storage. Returns None if the contents are in the store
    itself."""
    blobs = await files_blobs(settings, store, encryptor)
    if blobs is not None:
        store.use_blobs(blobs, settings.response_blob_bytes)
        collector = BlobCollector(store, blobs, clock=clock, log=log)
        await stack.enter_async_context(collector)
    return blobs


async def _start_store_tasks(
    stack: AsyncExitStack,
    settings: Settings,
    store: Store,
    sender: WebhookSender | None,
    clock: StoreClock,
    log: Any,
) -> None:
    """Start the tasks that delete expired data and deliver webhooks. They run until ``stack`` is
    closed."""
    sweeper = Sweeper(store, _retention(settings), read_clock=clock.synchronize, log=log)
    await stack.enter_async_context(sweeper)
    if sender is not None:
        await stack.enter_async_context(
            WebhookDeliveries(store.runs, sender, clock=clock, random=random.random)
        )


async def _open_metrics(
    stack: AsyncExitStack, settings: Settings, worker: WorkerContext | None
) -> Metrics:
    """Create the metrics of this process. If the setting ``metrics_export`` is on, the metrics are
    also sent to a collector by OpenTelemetry. Worker processes share their metrics."""
    exporter = _metrics_exporter(settings)
    stack.push_async_callback(asyncio.to_thread, exporter.close)
    tenants = {"default", *settings.tenants, *(key.tenant for key in settings.keys)}
    metrics = Metrics(tenants, names=settings.metrics_names, exporter=exporter)
    if worker is not None:
        await stack.enter_async_context(worker.share_metrics(metrics))
    return metrics


def _run_dependencies(
    settings: Settings,
    models: catalog.Catalog,
    store: Store,
    seal: Encryptor,
    tracer: Tracer,
    metrics: Metrics,
    clock: Clock,
) -> RunDependencies:
    return RunDependencies(
        models=models,
        store=store,
        clock=clock,
        ids=IdMaker(_wall_clock),
        policy=_policy(settings),
        seal=seal,
        tracer=tracer,
        on_tool_call=metrics.record_tool_call,
        on_background_end=metrics.record_background,
    )


def _watchdog(
    settings: Settings, log: Any, metrics: Metrics
) -> AbstractAsyncContextManager[LoopWatchdog | None]:
    """Return a context manager that watches the event loop for stalls. Enter it only after models
    and packages are loaded: their loading may stall the loop, but at that time no client waits."""
    if not settings.stall_log_ms:
        return nullcontext()
    return LoopWatchdog(settings.stall_log_ms / 1000, log=log, on_stall=metrics.count_stall)


@asynccontextmanager
async def _loading_models(
    settings: Settings, worker: WorkerContext | None
) -> AsyncIterator[asyncio.Task[catalog.Catalog]]:
    """Context manager that loads the models in the background and yields the loading task. During
    the loading, the ``async with`` block can open other parts of the server. At the end of the
    block, the models are closed."""
    loading = asyncio.create_task(_load_models(settings, worker))
    # Let the task start. Its thread then reads the first model, while the block opens other parts.
    await asyncio.sleep(0)
    try:
        yield loading
    finally:
        loading.cancel()
        await asyncio.wait([loading])
        if not loading.cancelled() and loading.exception() is None:
            await loading.result().close()


async def _loaded_models(
    settings: Settings,
    loading: Awaitable[catalog.Catalog],
    ranges: tuple[MemoryRange, ...] | None,
) -> catalog.Catalog:
    """Wait until the models are loaded. Check that they include the models that file search needs
    according to the settings.

    ``ranges``: the process's memory ranges before loading. Loading adds memory ranges. If
    ``ranges`` is given, this function searches the added ranges for memory pages that contain only
    zeros, and returns these pages to the operating system.
    """
    models = await loading
    _check_search_models(settings, models)
    if ranges is not None:
        release_zero_pages(new_ranges(ranges, writable_ranges()))
    return models


async def _load_models(settings: Settings, worker: WorkerContext | None = None) -> catalog.Catalog:
    hosted = None if worker is None else worker.models
    with progress_bar() as progress:
        return await catalog.load(settings, progress, now=int(_wall_clock()), hosted=hosted)


async def find_capabilities(settings: Settings, *, log: Any) -> tuple[Capability, ...]:
    """List the features of a server with these settings on this machine, and say for each feature
    whether it works. No models are loaded. Raises ``SetupError`` if a server with these settings
    would not start."""
    settings = with_packaged_embedder(settings)
    async with AsyncExitStack() as stack:
        store = await open_store("memory:")
        stack.push_async_callback(store.close)
        fetcher = open_fetcher(settings)
        if fetcher is not None:
            stack.push_async_callback(fetcher.close)
        seal = await open_encryptor(settings, store)
        files = Files(store, clock=_wall_clock, ids=_new_id)
        parts = _container_parts(settings, store, files, _wall_clock, ContainerRelay())
        _, providers = await _tools(stack, settings, parts, seal, fetcher, Documents(), log)
        return list_capabilities(settings, providers, has_fetcher=fetcher is not None)


def address(host: str, port: int) -> str:
    """Return a URL for a server that listens on ``host``. The URL works on the server's own
    machine."""
    name = EVERY_ADDRESS.get(host, host).strip("[]")
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _peers(worker: WorkerContext | None) -> Path | None:
    """Return the folder with the sockets of this server's processes. Returns None for a server
    without workers."""
    return None if worker is None else worker.folder.peers


def _store_peers(settings: Settings, worker: WorkerContext | None) -> Path | None:
    """Return the folder for the sockets with which the processes that share a store find each
    other. With PostgreSQL, all servers of this user on this host share one folder. With another
    store, only the workers of this server share a folder. Returns None if the store is not
    PostgreSQL and the server has no workers, because then only one process uses the store."""
    return runtime_folder() if is_postgres(settings.store) else _peers(worker)


def _peer_url(settings: Settings, port: int) -> str:
    """Return the URL at which other Antiphon servers with the same store can reach this server.
    Returns "" if the server listens on all addresses, because the server does not know which of
    these addresses others can reach."""
    return "" if settings.host in EVERY_ADDRESS else address(settings.host, port)


def _open_log(settings: Settings, level: LogLevel | None = None) -> Any:
    return open_log(sys.stderr, style=settings.log_format, level=level or settings.log_level)


def _admission(settings: Settings, metrics: Metrics, worker: WorkerContext | None) -> Admission:
    """Return the queue in which the requests of this process wait until the server has capacity for
    them. If the server has several workers, they share one queue, and the result is this worker's
    connection to it."""
    if worker is not None:
        return worker.admission(time.monotonic, metrics.observe_wait)
    return admission_queue(request_limits(settings), time.monotonic, metrics.observe_wait)


class _AppFactory(Struct, frozen=True):
    """Builds the ASGI app, at the start and after each reload of the settings. The fields are the
    parts of the server that stay the same after a reload."""

    dependencies: RunDependencies
    models: catalog.Catalog
    containers: ContainerRegistry | None
    service: Service
    metrics: Metrics
    admission: Admission
    worker: WorkerContext | None
    log: Any

    def build(self, settings: Settings, shown: SettingList) -> ASGIApp:
        """Build the ASGI app for these settings. ``shown``: the settings as the API shows them to
        operators."""
        return create_app(
            self.service,
            _access(settings),
            request_limits(settings),
            ids=self.dependencies.ids,
            log=self.log,
            cors=settings.cors_origins,
            metrics=self.metrics,
            admission=self.admission,
            manager=self.models.manager,
            api_keys=_api_keys(settings, self.dependencies),
            processes=None if self.worker is None else self.worker.processes,
            tracer=self.dependencies.tracer,
            settings=shown,
        )

    async def rebuild(self, loaded: LoadedSettings) -> ASGIApp:
        """Apply new settings and return an ASGI app for them. If the settings are not valid, raises
        ``SetupError`` and changes nothing."""
        shown = _shown_settings(loaded.settings, loaded.origins)
        settings = with_packaged_embedder(loaded.settings)
        _check_exposure(settings)
        _access(settings)
        await _reload_models(self.models, settings, self.worker)
        self.admission.update(request_limits(settings))
        self.dependencies.policy.quotas.update(_quotas(settings))
        if self.containers is not None:
            self.containers.quotas.update(_quotas(settings))
        return self.build(settings, shown)


async def _reload_models(
    models: catalog.Catalog, settings: Settings, worker: WorkerContext | None
) -> None:
    """Load the models of new settings and serve them. If the settings are not valid, raises
    ``SetupError`` and changes nothing."""
    hosted = None if worker is None else worker.models
    new = await catalog.load(settings, now=int(_wall_clock()), hosted=hosted, earlier=models)
    try:
        _check_search_models(settings, new)
    except SetupError:
        await new.close_models_not_in(models)
        raise
    models.replace(new)


def _shown_settings(settings: Settings, origins: Mapping[str, str]) -> SettingList:
    return SettingList(
        data=tuple(
            SettingEntry(**structs.asdict(each)) for each in report_settings(settings, origins)
        )
    )


def _container_parts(
    settings: Settings,
    store: Store,
    files: Files,
    clock: Clock,
    relay: ContainerRelay,
    worker: WorkerContext | None = None,
) -> ContainerDependencies:
    return ContainerDependencies(
        uploads=_Uploads(files),
        library=Skills(store, clock=clock, ids=_new_id),
        clock=clock,
        ids=_new_id,
        quotas=_quotas(settings),
        directory=store.containers,
        relay=relay,
        host=None if worker is None else worker.containers,
    )


async def _tools(
    stack: AsyncExitStack,
    settings: Settings,
    parts: ContainerDependencies,
    seal: Encryptor,
    fetcher: Fetcher | None,
    documents: Documents,
    log: Any,
) -> tuple[ContainerRegistry | None, Mapping[str, ToolProvider]]:
    """Create the registry of containers and the providers of all server-side tools. ``parts``: the
    parts of the server that containers need. ``seal``: encryptor for the state that tools give to
    clients. Returns the registry (None if the server runs no code) and the tool providers by tool
    type. Leaving ``stack`` closes them."""
    containers = await stack.enter_async_context(open_containers(settings, log, parts))
    dependencies = ToolDependencies(
        settings=settings,
        documents=documents,
        fetcher=fetcher,
        containers=containers.registry,
        no_containers=containers.reason,
        uploads=parts.uploads,
        encryptor=seal,
        clock=parts.clock,
    )
    return containers.registry, await stack.enter_async_context(open_tools(dependencies))


class _Uploads:
    """Gives tools read access to uploaded files, because tools have no access to the store."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def get_name(self, tenant: str, file_id: str) -> str | None:
        found = await self._files.find(tenant, file_id)
        return None if found is None else found.filename

    async def read(self, tenant: str, file_id: str) -> tuple[str, bytes]:
        stored = await self._files.read(tenant, file_id)
        return stored.file.filename, stored.content


def _wall_clock() -> float:
    return time.time()  # noqa: TID251 - the clock that the other parts are given


def _check_search_models(settings: Settings, models: ModelCatalog) -> None:
    _check_embeddings(settings.file_search_embeddings, models)
    name = settings.file_search_reranker
    if name != NO_EMBEDDINGS and not Rerankers(models).is_served(name):
        raise SetupError(f"file_search_reranker: {name!r} is not a served reranking model")


def _check_embeddings(name: str, models: ModelCatalog) -> None:
    if name == NO_EMBEDDINGS:
        return
    require_numpy()
    if not any(
        name in (model.name, *model.aliases) and model.embedding is not None
        for model in models.all()
    ):
        raise SetupError(f"file_search_embeddings: {name!r} is not a served embedding model")


def _new_id(prefix: str) -> str:
    return new_id(prefix, _wall_clock())


def _check_exposure(settings: Settings) -> None:
    if (
        settings.keys
        or settings.stored_keys
        or settings.allow_unauthenticated
        or is_loopback(settings.host)
    ):
        return
    raise SetupError(
        f"host {settings.host!r} is reachable from other machines and there are no API keys: add"
        f" one ({antiphon_command('key new')}) or set allow_unauthenticated"
    )


def _policy(settings: Settings) -> Policy:
    return Policy(
        keepalive_s=settings.keepalive_s,
        first_delta_wait_s=settings.upstream_start_wait_s,
        timeout_s=settings.timeout_s or None,
        unavailable_tools=settings.unavailable_tools,
        reasoning_events=settings.reasoning_events,
        undecryptable_items=settings.undecryptable_items,
        reasoning_summaries=settings.reasoning_summaries,
        summary_model=settings.summary_model,
        share_prefix_cache=settings.shares_prefix_cache,
        webhooks=settings.webhook_url is not None,
        quotas=_quotas(settings),
        files_signed_url_s=settings.files_signed_urls_s,
        file_search=settings.file_search,
        file_search_embeddings=_unless_off(settings.file_search_embeddings),
        file_search_reranker=_unless_off(settings.file_search_reranker),
        mcp_labels={
            name: each.tool for name, each in settings.mcp_servers.items() if each.tool is not None
        },
        tool_limits=ToolLimits(
            max_turns=settings.max_turns,
            max_seconds=settings.max_tool_time_s or None,
            call_timeout_s=settings.tool_timeout_s,
            at_limit=settings.on_tool_limit,
        ),
        lease=LeaseConfig(
            lease_s=settings.lease_s,
            max_runs=settings.max_background_runs,
            max_runs_per_tenant=_tenant_limit(settings, settings.max_background_runs),
        ),
    )


def _unless_off(name: str) -> str | None:
    return None if name == NO_EMBEDDINGS else name


async def open_encryptor(settings: Settings, store: Store) -> Encryptor:
    """Return an encryptor with the keys in the settings. If the settings have no keys, the
    encryptor uses a key that all servers of the store share. This key is in the store."""
    keys = [EncryptionKey.parse(text) for text in settings.encryption_keys]
    return Encryptor(
        keys
        or [
            EncryptionKey.from_secret(
                await store.get_or_create_secret("seal", EncryptionKey.generate().secret)
            )
        ]
    )


def _tracer(settings: Settings) -> Tracer:
    if settings.traces == "off":
        return Tracer()
    from antiphon.tracing.opentelemetry import open_tracer

    return open_tracer(settings.otlp_endpoint, with_content=settings.trace_content)


def _metrics_exporter(settings: Settings) -> MetricsExporter:
    if settings.metrics_export == "off":
        return MetricsExporter()
    from antiphon.tracing.opentelemetry_metrics import open_exporter

    return open_exporter(settings.otlp_endpoint)


async def files_blobs(
    settings: Settings, store: Store, encryptor: Encryptor, url: str | None = None
) -> Blobs | None:
    """Open the external storage for the contents of uploaded files. ``url``: the address of this
    storage; the default is the setting ``files``. Returns None if the address is ``store``, because
    the store itself then holds the contents.

    Raises ``SetupError`` if the storage cannot be opened. Also raises it if the setting ``files``
    is ``store`` but some contents are still outside of the store.
    """
    url = settings.files if url is None else url
    if url == FILES_IN_STORE:
        if url == settings.files and (
            await store.files.list_contents(after=0, limit=1, in_blobs=True)
            or await store.has_blobs()
        ):
            command = antiphon_command("files migrate --from URL")
            raise SetupError(f"files: contents are outside of the store. To move them: {command}")
        return None
    # Several stores may share a bucket. Each store has its own prefix and deletes only below it.
    root = await store.get_or_create_secret("blobs", secrets.token_bytes(32))
    return open_blobs(
        url,
        settings.files_options,
        root=hashlib.sha256(root).hexdigest()[:32],
        encryptor=encryptor,
        encrypts=settings.files_encrypted,
        new_id=lambda: secrets.token_hex(16),
    )


def _sender(settings: Settings) -> WebhookSender | None:
    if settings.webhook_url is None:
        return None
    return WebhookSender.open(
        settings.webhook_url, settings.webhook_secrets, private=settings.webhook_allow_private
    )


def open_fetcher(settings: Settings) -> Fetcher | None:
    """Return the URL fetcher. Returns None if fetching is off, or if it is ``auto`` and the extra
    ``fetch`` is not installed."""
    networks = tuple(
        parse_network(text, "fetch_allowed_networks") for text in settings.fetch_allowed_networks
    )
    if not settings.fetch_urls:
        return None
    if settings.fetch_urls == "auto" and find_spec("aiohttp") is None and not networks:
        return None
    return Fetcher.open(max_bytes=settings.max_file_bytes, clock=time.monotonic, networks=networks)


def _api_keys(settings: Settings, dependencies: RunDependencies) -> ApiKeys | None:
    if not settings.stored_keys:
        return None
    names = [key.name or key.tenant for key in settings.keys]
    store, clock = dependencies.store, dependencies.clock
    return ApiKeys(store.keys, clock=clock, timer=time.monotonic, reserved=names)


def _access(settings: Settings) -> guard.AuthConfig:
    keys = tuple(
        guard.AuthKey(
            name=key.name or key.tenant,
            tenant=key.tenant,
            sha256=key.sha256,
            limits=_client_limits(key, "keys"),
        )
        for key in settings.keys
    )
    return guard.AuthConfig(
        keys=keys,
        metrics=settings.metrics,
        hosts=settings.allowed_hosts,
        prompt_editors=settings.prompt_editors,
        page=page_is_served(settings),
        operators=settings.operators,
        stored_keys=settings.stored_keys,
        tenants={
            name: _client_limits(each, f"tenants.{name}") for name, each in settings.tenants.items()
        },
    )


def _client_limits(source: ApiKey | Tenant, path: str) -> ClientLimits:
    """Return the limits of a key or a tenant from the settings. ``path``: the place of the key or
    tenant in the settings, for the error message. Raises ``SetupError`` if ``tools`` contains an
    unknown tool."""
    limits = ClientLimits.copy_from(source)
    for name in limits.tools or ():
        if name not in get_args(HostedTool):
            known = ", ".join(get_args(HostedTool))
            raise SetupError(f"{path}: tools: {name!r} is not one of {known}")
    return limits


def page_is_served(settings: Settings) -> bool:
    """Return whether the server serves its web page, a user interface in the browser, at ``/``."""
    return settings.ui == "on" or (settings.ui == "auto" and is_loopback(settings.host))


def request_limits(settings: Settings) -> guard.RequestLimits:
    """Return the limits for requests from the settings."""
    return guard.RequestLimits(
        max_body_bytes=settings.max_body_bytes,
        max_file_bytes=settings.max_file_bytes,
        max_concurrent_requests=settings.max_concurrent_requests,
        max_requests_per_tenant=_tenant_limit(settings, settings.max_concurrent_requests),
        max_queued_requests=settings.max_queued_requests,
        requests_per_minute=settings.requests_per_minute or None,
        body=BodyLimits(
            items=settings.max_items, tools=settings.max_tools, nesting=settings.max_nesting
        ),
    )


def _tenant_limit(settings: Settings, total: int) -> int | None:
    """Return how many of ``total`` concurrent requests or runs one tenant may have. Returns None if
    all keys belong to one tenant, because this tenant may use the whole total."""
    if len({key.tenant for key in settings.keys}) < 2 and not settings.stored_keys:
        return None
    return tenant_share(total, settings.max_tenant_share)


def _quotas(settings: Settings) -> TenantQuotas:
    """Return the quotas of all tenants from the settings. In the settings, 0 means no limit."""

    def merge(own: Tenant) -> Quotas:
        limits = {}
        for name in Quotas.__struct_fields__:
            limit = getattr(own, name)
            limits[name] = (getattr(settings, name) if limit is None else limit) or None
        return Quotas(**limits)

    tenants = {name: merge(own) for name, own in settings.tenants.items()}
    return TenantQuotas(merge(Tenant()), tenants)


def _retention(settings: Settings) -> Retention:
    return Retention(
        max_age_s=settings.retention_days * 86_400 or None,
        max_responses=settings.retention_responses or None,
        max_bytes=settings.retention_bytes or None,
        max_log_age_s=settings.retention_events_s or None,
        max_usage_age_s=settings.retention_usage_days * 86_400 or None,
        max_audit_age_s=settings.retention_audit_days * 86_400 or None,
    )
