"""The child processes of a server with workers. Workers answer requests, the host process runs the
models, and another process keeps the containers."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from antiphon.config.load import LoadedSettings
from antiphon.config.reload import SettingsReloader
from antiphon.config.settings import Settings
from antiphon.http.server.listening import raise_file_limit
from antiphon.ipc.server import CallServer
from antiphon.models import catalog
from antiphon.models.packaged_embedder import with_packaged_embedder
from antiphon.resources.file_storage.files import Files
from antiphon.store import is_postgres, open_store
from antiphon.store.upkeep.clock import StoreClock
from antiphon.support.fair_threads import default_threads
from antiphon.support.log import Log
from antiphon.support.logs import LogLevel, capture_libraries
from antiphon.tools.containers.local import LocalContainers
from antiphon.workers.context import WorkerContext
from antiphon.workers.setup import CHILD_END_S, ChildSetup, StartReport

from .addresses import peer_url
from .clock import create_id, read_clock
from .containers import ContainerSetup, container_dependencies, open_containers, open_relay
from .models import load_models, reload_models
from .policy import tenant_quotas
from .serve import ReloadSources, serve_sockets
from .storage import files_blobs, open_encryptor, store_cipher
from .telemetry import open_server_log

#: Maximum number of PostgreSQL connections of the process that owns containers. It needs the store
#: only to start and end containers and to read files.
_CONTAINER_CONNECTIONS = 2


async def serve_worker(setup: ChildSetup, announce: Callable[[StartReport], None]) -> None:
    """Run a worker process: serve HTTP requests until SIGTERM. Raises ``SetupError``."""
    loaded = setup.sources.load()
    raise_file_limit()
    level = LogLevel(loaded.settings.log_level)
    log = open_server_log(loaded.settings, level, worker=setup.number)
    capture_libraries(log)
    async with WorkerContext.open(setup) as worker:
        await serve_sockets(
            loaded,
            [socket.socket(fileno=number) for number in setup.listeners],
            announce,
            log=log,
            worker=worker,
            reload=ReloadSources(setup.sources, level),
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
    log = open_server_log(loaded.settings, level, process="host")
    capture_libraries(log)
    loop.set_default_executor(default_threads())
    hosted: asyncio.Future[catalog.Catalog] = loop.create_future()
    server = CallServer(lambda: ModelHostSession(hosted))
    async with AsyncExitStack() as stack:
        await server.open(setup.folder.host)
        stack.push_async_callback(server.close)
        models = await load_models(with_packaged_embedder(loaded.settings))
        stack.push_async_callback(models.close)
        hosted.set_result(models)

        async def apply(new: LoadedSettings) -> None:
            await reload_models(models, with_packaged_embedder(new.settings), None)

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
    log = open_server_log(settings, level, process="containers")
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
                containers.local.quotas.update(tenant_quotas(new.settings))

        reloads = SettingsReloader(loaded, setup.sources, apply, log=log, level=level)
        await _answer_calls(server, reloads, announce, settings)


async def _open_hosted_containers(
    stack: AsyncExitStack, setup: ChildSetup, settings: Settings, log: Log
) -> ContainerSetup:
    """Open the store, and prepare this process to run the containers of all workers. When ``stack``
    is closed, the containers and the store are closed."""
    store = await open_store(
        settings.store,
        cipher=store_cipher(settings),
        peers=None if is_postgres(settings.store) else setup.folder.peers,
        connections=min(_CONTAINER_CONNECTIONS, settings.store_connections),
        listen_url=settings.store_listen_url,
    )
    stack.push_async_callback(store.close)
    clock = StoreClock(store, wall=read_clock, monotonic=time.monotonic)
    await clock.synchronize()
    blobs = await files_blobs(settings, store, await open_encryptor(settings, store))
    files = Files(store, clock=clock, ids=create_id, blobs=blobs)
    url = peer_url(settings, setup.port)
    relay, _ = await open_relay(stack, settings, store, setup.folder.peers, url, clock, log)
    parts = container_dependencies(settings, store, files, clock, relay)
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
