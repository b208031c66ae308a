"""Serve an app over HTTP until a signal stops the server, with one process or with several."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from msgspec import Struct

from antiphon.config.load import LoadedSettings, SettingsSources
from antiphon.config.reload import SettingsReloader
from antiphon.config.settings import Settings
from antiphon.http.server.connections import ConnectionLimits
from antiphon.http.server.listening import bind, raise_file_limit
from antiphon.http.server.serve import serve as serve_app
from antiphon.resources.prompts import Prompts
from antiphon.support.fair_threads import default_threads
from antiphon.support.log import Log
from antiphon.support.logs import LogLevel, capture_libraries
from antiphon.workers.context import WorkerContext
from antiphon.workers.setup import AnnouncedModel, StartReport

from .access import check_exposure
from .addresses import address, peer_url
from .app import App, open_app
from .clock import create_id
from .containers import prepare_control_groups, runs_code
from .policy import request_limits
from .telemetry import open_server_log


async def serve(
    settings: Settings,
    announce: Callable[[StartReport], None] = lambda serving: None,
    *,
    origins: Mapping[str, str] | None = None,
    sources: SettingsSources | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT stops the server.

    ``announce`` is called when the server is ready to answer requests. Requests that arrive earlier
    wait. The process logs to standard error. ``origins``: see ``open_app``. ``sources``: where the
    settings are read again after a SIGHUP. If ``sources`` is None, a SIGHUP stops the server.
    Raises ``SetupError``.
    """
    level = LogLevel(settings.log_level)
    log = _prepare(settings, level)
    further = [settings.ollama_port] if settings.ollama_port else []
    sockets = bind(settings.host, settings.port, *further)
    async with AsyncExitStack() as stack:
        for listener in sockets:
            stack.callback(listener.close)
        loaded = LoadedSettings(settings, origins or {})
        reload = None if sources is None else ReloadSources(sources, level)
        await serve_sockets(loaded, sockets, announce, log=log, reload=reload)


async def serve_with_workers(
    loaded: LoadedSettings, sources: SettingsSources, announce: Callable[[StartReport], None]
) -> None:
    """Serve with ``settings.workers`` processes until SIGTERM or SIGINT. ``sources``: the file,
    environment and flags from which each process loads the settings. Raises ``SetupError``."""
    from antiphon.workers.shared_store import shared_store
    from antiphon.workers.supervisor import WorkerSupervisor

    settings = loaded.settings
    level = LogLevel(settings.log_level)
    log = _prepare(settings, level)
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


class ReloadSources(Struct, frozen=True):
    """The data for reloads of the settings: the sources of the settings, and the log level of the
    process."""

    sources: SettingsSources
    level: LogLevel


def _prepare(settings: Settings, level: LogLevel) -> Any:
    """Check the settings before the server starts, raise the process's limit of open files, and set
    up logging. Returns the logger of the process. Raises ``SetupError``."""
    check_exposure(settings)
    Prompts(settings.prompts_dir, ids=create_id).check()
    raise_file_limit()
    log = open_server_log(settings, level)
    capture_libraries(log)
    return log


async def serve_sockets(
    loaded: LoadedSettings,
    sockets: Sequence[socket.socket],
    announce: Callable[[StartReport], None],
    *,
    log: Log,
    worker: WorkerContext | None = None,
    reload: ReloadSources | None = None,
) -> None:
    """Build the app and serve it over HTTP on these sockets until SIGTERM or SIGINT. ``worker``:
    the connections of a worker process to the server's other processes; None if the server has a
    single process. ``reload``: what a reload of the settings after a SIGHUP needs; None disables
    reloads."""
    settings = loaded.settings
    asyncio.get_running_loop().set_default_executor(default_threads())
    port = sockets[0].getsockname()[1]
    url = address(settings.host, port)
    async with open_app(
        settings,
        log=log,
        origins=loaded.origins,
        worker=worker,
        url=peer_url(settings, port),
    ) as app:

        async def apply(new: LoadedSettings) -> None:
            await app.reload(new)
            if worker is None or worker.number == 1:  # one record for all workers
                await app.service.audit.record("settings.reloaded")

        on_hangup = None
        if reload is not None:
            reloader = SettingsReloader(
                loaded,
                reload.sources,
                apply,
                log=log,
                level=reload.level,
                on_reloaded=app.reloads.on_reloaded,
            )
            app.reloads.use(reloader)
            on_hangup = reloader.start

        def started() -> None:
            if settings.log_format == "json":
                log.info(
                    "serving",
                    url=url,
                    models=[model.name for model in app.models.all()],
                    ready=[each.name for each in app.capabilities if each.problem is None],
                    missing={each.name: each.problem for each in app.capabilities if each.problem},
                )
            announce(_start_report(app, url))

        await serve_app(
            app,
            sockets,
            drain=app.service.drain,
            grace_s=settings.drain_s,
            started=started,
            on_hangup=on_hangup,
            max_frame_bytes=settings.max_body_bytes,
            limits=ConnectionLimits(per_address=settings.max_connections_per_address),
        )


def _start_report(app: App, url: str) -> StartReport:
    models = tuple(
        AnnouncedModel(model.name, model.aliases, model.backend.context_size)
        for model in app.models.all()
    )
    return StartReport(
        url=url, models=models, capabilities=app.capabilities, first_key=app.first_key
    )
