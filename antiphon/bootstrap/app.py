"""The app: opens the parts of a server in order, and composes them into an ASGI app.

Each of the other modules of this package opens one part, such as the store or the tools. This
module is the only one that knows all of them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import structlog
from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.attachments.background_reader import BackgroundReader
from antiphon.attachments.documents import Documents
from antiphon.backends.session_signals import SessionSignals
from antiphon.config.load import LoadedSettings
from antiphon.config.report import report_settings
from antiphon.config.settings import Settings
from antiphon.http.app import create_app
from antiphon.http.metrics import Metrics
from antiphon.ipc.http_endpoint import is_call
from antiphon.limits.admission import Admission, admission_queue
from antiphon.limits.rate_limits import RateLimits
from antiphon.models import catalog
from antiphon.models.added_models import AddedModels
from antiphon.models.download import check_exists
from antiphon.models.packaged_embedder import with_packaged_embedder
from antiphon.oidc import SignIn
from antiphon.resources.file_storage.files import Files
from antiphon.resources.prompts import Prompts
from antiphon.runs.dependencies import OptionalFeatures, RunDependencies
from antiphon.runs.service import Service
from antiphon.security.encryption import Encryptor
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.upkeep.clock import Clock
from antiphon.support.log import Log
from antiphon.tools.containers.registry import ContainerRegistry
from antiphon.tools.containers.relay import ContainerRelay
from antiphon.tracing.base import Tracer
from antiphon.wire.admin.server_info import SettingList
from antiphon.wire.object_ids import IdMaker
from antiphon.workers.context import WorkerContext
from antiphon.workers.setup import Capability

from .access import auth_config, check_exposure, create_first_key, stored_api_keys
from .attachments import open_fetcher, open_reader
from .capabilities import list_capabilities
from .clock import create_id, read_clock
from .containers import container_dependencies, open_relay
from .models import (
    erase_prefixes,
    loading_models,
    mark_prefixes,
    reload_models,
    wait_for_models,
)
from .policy import request_limits, run_policy, tenant_quotas
from .reloads import ServerReloads
from .sign_in import open_sign_in
from .storage import (
    open_encryptor,
    open_server_blobs,
    open_server_store,
    open_webhook_sender,
    peers_folder,
    start_store_tasks,
)
from .telemetry import open_metrics, open_server_log, open_server_tracer, open_watchdog
from .tool_factories import open_server_tools


class App:
    """Antiphon as an ASGI app. ``service``: the operations of the API. ``models``: the served
    models. ``capabilities``: the features of this server. ``rebuild``: a function that applies new
    settings and returns a new ASGI app. ``calls``: the ASGI app that answers RPC calls of other
    Antiphon servers. ``first_key``: the API key that was created because there was none.
    ``reloads``: reloads the settings of the whole server, at the request of a client."""

    def __init__(
        self,
        asgi: ASGIApp,
        service: Service,
        models: catalog.Catalog,
        capabilities: tuple[Capability, ...] = (),
        rebuild: Callable[[LoadedSettings], Awaitable[ASGIApp]] | None = None,
        calls: ASGIApp | None = None,
        first_key: str | None = None,
        reloads: ServerReloads | None = None,
    ) -> None:
        self._asgi = asgi
        self._calls = calls
        self._rebuild = rebuild
        self.capabilities = capabilities
        self.first_key = first_key
        self.reloads = reloads or ServerReloads(is_worker=False)
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


@asynccontextmanager
async def open_app(
    settings: Settings,
    *,
    log: Log | None = None,
    origins: Mapping[str, str] | None = None,
    worker: WorkerContext | None = None,
    url: str = "",
) -> AsyncIterator[App]:
    """Open store, models, tools and service, and yield the ASGI app that uses them.

    Serve the app with any ASGI server, or mount it in another app. At the end of the block, running
    requests have ``drain_s`` seconds to finish. Then everything is closed.

    - ``log``: a structlog logger. The default logger writes to standard error.
    - ``origins``: name of a setting → origin of its value (a file, a variable, a flag …), as
      ``load`` returns it. The API shows the origins to operators.
    - ``worker``: the connections of a worker process to the other processes of the server.
    - ``url``: the address at which other servers reach this process; "" if they cannot reach it.
      The setting ``replica_url`` overrides it.

    Raises ``SetupError``.
    """
    log, shown = log or open_server_log(settings), _shown_settings(settings, origins or {})
    settings = with_packaged_embedder(settings)
    settings = settings if worker is None else worker.own_settings(settings)
    prompts = _open_prompts(settings)
    async with AsyncExitStack() as stack:
        tracer = open_server_tracer(settings)
        stack.push_async_callback(asyncio.to_thread, tracer.close)
        metrics = await open_metrics(stack, settings, worker)
        store, clock = await open_server_store(stack, settings, metrics, worker)
        seal = await open_encryptor(settings, store)
        blobs = await open_server_blobs(stack, settings, store, seal, clock, log)
        sender = open_webhook_sender(stack, settings)
        loading = await stack.enter_async_context(loading_models(settings, worker, store))
        fetcher = await stack.enter_async_context(open_fetcher(settings))
        documents = Documents(reader := BackgroundReader(open_reader(settings, log)))
        files = Files(store, clock=clock, ids=create_id, blobs=blobs)
        peers = peers_folder(worker)
        relay, calls = await open_relay(stack, settings, store, peers, url, clock, log)
        parts = container_dependencies(settings, store, files, clock, relay, worker)
        containers, providers = await open_server_tools(
            stack, settings, parts, seal, fetcher, documents, log
        )
        models = await wait_for_models(settings, loading)
        reloads = ServerReloads(is_worker=worker is not None)
        added = _open_added_models(stack, settings, models, reloads)
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
                add_model=added.admit,
                webhook_sender=None if settings.webhook.endpoints == "off" else sender,
            ),
        )
        await stack.enter_async_context(reader)
        await start_store_tasks(stack, settings, store, service, sender, clock, log)
        stack.push_async_callback(service.drain, settings.drain_s)
        service.start()
        abilities = list_capabilities(settings, providers, has_fetcher=fetcher is not None)
        sign_in = await open_sign_in(stack, settings, seal, clock)
        access = _Access(_admission(settings, metrics, worker), _open_rates(stack, store), sign_in)
        factory = _AppFactory(
            dependencies, models, containers, service, metrics, access, worker, log, added
        )
        asgi, key = factory.build(settings, shown), await create_first_key(settings, store)
        async with open_watchdog(settings, log, metrics):
            yield App(asgi, service, models, abilities, factory.rebuild, calls, key, reloads)


def _open_added_models(
    stack: AsyncExitStack, settings: Settings, models: catalog.Catalog, reloads: ServerReloads
) -> AddedModels:
    check = partial(check_exists, cache=settings.cache_dir)
    added = AddedModels(settings.added_models, models.all, reloads, check)
    stack.push_async_callback(added.close)
    return added


def _open_prompts(settings: Settings) -> Prompts:
    prompts = Prompts(settings.prompts_dir, ids=create_id)
    prompts.check()
    return prompts


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
        ids=IdMaker(read_clock),
        policy=run_policy(settings),
        seal=seal,
        tracer=tracer,
        on_tool_call=metrics.record_tool_call,
        on_background_end=metrics.record_background,
        signals=SessionSignals(
            models.all, partial(erase_prefixes, settings), partial(mark_prefixes, settings)
        ),
    )


async def find_capabilities(settings: Settings) -> tuple[Capability, ...]:
    """List the features of a server with these settings on this machine, and say for each feature
    whether it works. No models are loaded, and nothing is logged. Raises ``SetupError`` if a
    server with these settings would not start."""
    settings = with_packaged_embedder(settings)
    renderer = structlog.processors.KeyValueRenderer()
    quiet = structlog.wrap_logger(structlog.ReturnLogger(), processors=[renderer])
    async with AsyncExitStack() as stack:
        store = await open_store("memory:")
        stack.push_async_callback(store.close)
        fetcher = await stack.enter_async_context(open_fetcher(settings))
        seal = await open_encryptor(settings, store)
        files = Files(store, clock=read_clock, ids=create_id)
        parts = container_dependencies(settings, store, files, read_clock, ContainerRelay())
        _, providers = await open_server_tools(
            stack, settings, parts, seal, fetcher, Documents(), quiet
        )
        return list_capabilities(settings, providers, has_fetcher=fetcher is not None)


def _admission(settings: Settings, metrics: Metrics, worker: WorkerContext | None) -> Admission:
    """Return the queue in which the requests of this process wait until the server has capacity for
    them. If the server has several workers, they share one queue, and the result is this worker's
    connection to it."""
    if worker is not None:
        return worker.admission(time.monotonic, metrics.observe_wait)
    return admission_queue(request_limits(settings), time.monotonic, metrics.observe_wait)


def _open_rates(stack: AsyncExitStack, store: Store) -> RateLimits:
    rates = RateLimits(store.rates, owner=secrets.token_hex(8), timer=time.monotonic)
    stack.push_async_callback(rates.close)
    return rates


class _Access(Struct, frozen=True):
    """Who may use the server, and how much of it at a time."""

    admission: Admission
    rates: RateLimits
    sign_in: SignIn | None


class _AppFactory(Struct, frozen=True):
    """Builds the ASGI app, at the start and after each reload of the settings. The fields are the
    parts of the server that stay the same after a reload."""

    dependencies: RunDependencies
    models: catalog.Catalog
    containers: ContainerRegistry | None
    service: Service
    metrics: Metrics
    access: _Access
    worker: WorkerContext | None
    log: Log
    added_models: AddedModels

    def build(self, settings: Settings, shown: SettingList) -> ASGIApp:
        """Build the ASGI app for these settings. ``shown``: the settings as the API shows them to
        operators."""
        self.added_models.allowed = settings.allow_hub_models
        return create_app(
            self.service,
            auth_config(settings, self.access.sign_in),
            request_limits(settings),
            ids=self.dependencies.ids,
            log=self.log,
            cors=settings.cors_origins,
            metrics=self.metrics,
            admission=self.access.admission,
            rates=self.access.rates,
            manager=self.models.manager,
            additions=self.added_models,
            sign_in=self.access.sign_in,
            stores_nothing=settings.store_nothing,
            api_keys=stored_api_keys(settings, self.dependencies),
            keys=self.dependencies.keys,
            processes=None if self.worker is None else self.worker.processes,
            tracer=self.dependencies.tracer,
            settings=shown,
        )

    async def rebuild(self, loaded: LoadedSettings) -> ASGIApp:
        """Apply new settings and return an ASGI app for them. If the settings are not valid, raises
        ``SetupError`` and changes nothing."""
        shown = _shown_settings(loaded.settings, loaded.origins)
        settings = with_packaged_embedder(loaded.settings)
        check_exposure(settings)
        auth_config(settings)
        await reload_models(self.models, settings, self.worker)
        self.access.admission.update(request_limits(settings))
        self.dependencies.policy.quotas.update(tenant_quotas(settings))
        if self.containers is not None:
            self.containers.quotas.update(tenant_quotas(settings))
        return self.build(settings, shown)


def _shown_settings(settings: Settings, origins: Mapping[str, str]) -> SettingList:
    return SettingList(data=tuple(report_settings(settings, origins)))
