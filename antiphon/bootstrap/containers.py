"""Containers, i.e. sandboxes in which tools run code: their registry, the sandbox that the settings
name, and the relay to the containers of other processes and servers.

Modules that load slowly are imported inside these functions.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct
from starlette.types import ASGIApp

from antiphon.config.folders import code_python
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.ipc.calls import Calls
from antiphon.ipc.http_calls import HttpCaller
from antiphon.ipc.http_endpoint import HttpCallEndpoint
from antiphon.ipc.signatures import CallSigner
from antiphon.resources.file_storage.files import Files
from antiphon.resources.skills import Skills
from antiphon.sandbox.base import Sandbox
from antiphon.sandbox.egress.proxy import Dialer
from antiphon.store.base import Store
from antiphon.store.upkeep.clock import Clock
from antiphon.support.installation import require_package
from antiphon.support.log import Log
from antiphon.support.plugins import load_plugin
from antiphon.tools.containers.container import ContainerPolicy, ContainerServices
from antiphon.tools.containers.hosted import HostedContainers
from antiphon.tools.containers.local import LocalContainers
from antiphon.tools.containers.network import open_egress
from antiphon.tools.containers.registry import ContainerRegistry
from antiphon.tools.containers.relay import ContainerRelay
from antiphon.tools.containers.remote import RemoteContainers
from antiphon.workers.context import WorkerContext

from .clock import create_id
from .policy import tenant_quotas

#: Function that opens a sandbox from the settings. Other packages register such a function as an
#: entry point of the group ``antiphon.sandboxes``. The setting ``sandbox`` contains its name.
#: Raises ``SetupError``.
SandboxFactory = Callable[[Settings], Awaitable[Sandbox]]

#: Values of the setting ``sandbox``.
BUBBLEWRAP, KUBERNETES, AUTO, OFF = "bubblewrap", "kubernetes", "auto", "off"
BUILT_IN_SANDBOXES = (AUTO, OFF, BUBBLEWRAP, KUBERNETES)
_SANDBOX_GROUP = "antiphon.sandboxes"
#: Maximum number of bytes of a call between servers, without the file that the call contains.
_CALL_BYTES = 1 << 20


def runs_code(settings: Settings) -> bool:
    """Return whether the settings allow the server to run code in sandboxes."""
    return settings.sandbox.kind != OFF


def prepare_control_groups(settings: Settings) -> None:
    """Create control groups (cgroups) for sandboxes below the group of this process, if this is
    permitted.

    Call this before child processes are started. A group that limits its child groups must not
    contain processes itself. So this process moves into one of the new groups. Later child
    processes start in the same group. Blocks briefly.
    """
    if settings.sandbox.kind in (AUTO, BUBBLEWRAP):
        from antiphon.sandbox.cgroups import ControlGroups

        ControlGroups.detect()


class ContainerDependencies(ContainerServices, frozen=True, kw_only=True):
    """The parts of the server that containers need. A container is a sandbox in which tools run
    code.

    - ``relay``: connects to the containers of other processes.
    - ``host``: RPC client of the process that owns the containers of all workers. If it is None,
      this process owns the containers that it creates.
    """

    relay: ContainerRelay
    host: Calls | None = None


class ContainerSetup(Struct, frozen=True):
    """The result of ``open_containers``. ``registry``: the registry of all containers. It is None
    if the server runs no code. ``reason``: why the server runs no code. ``local``: the containers
    that this process owns. It is None if another process owns the containers."""

    registry: ContainerRegistry | None = None
    reason: str = "The setting sandbox is off."
    local: LocalContainers | None = None


@asynccontextmanager
async def open_containers(
    settings: Settings, log: Log, parts: ContainerDependencies
) -> AsyncIterator[ContainerSetup]:
    """Open the containers that run code.

    The result has no containers if code execution is off or if bubblewrap does not work on this
    machine, because code never runs outside of a sandbox. If bubblewrap does not work, the reason
    is logged. Raises ``SetupError`` if Kubernetes or a plug-in does not work.
    """
    if not runs_code(settings):
        yield ContainerSetup()
        return
    policy = await asyncio.to_thread(_container_policy, settings)
    remote = RemoteContainers(parts.directory, parts.relay.connect)
    async with AsyncExitStack() as stack:
        maker = await _open_maker(stack, settings, policy, parts, remote, log)
        if isinstance(maker, str):
            yield ContainerSetup(None, maker)
            return
        stack.push_async_callback(parts.relay.close)
        registry = ContainerRegistry(maker, policy, parts, remote)
        yield ContainerSetup(registry, "", maker if isinstance(maker, LocalContainers) else None)


async def _open_maker(
    stack: AsyncExitStack,
    settings: Settings,
    policy: ContainerPolicy,
    parts: ContainerDependencies,
    remote: RemoteContainers,
    log: Log,
) -> LocalContainers | HostedContainers | str:
    """Open the object that creates containers. In a worker, this object asks the process that owns
    the containers of all workers. Otherwise, it creates the containers in this process. ``remote``:
    the containers of other processes.

    If the server cannot run containers, returns the reason as a text. Raises ``SetupError``.
    """
    if parts.host is not None:
        hosted = HostedContainers(parts.host, remote)
        return await hosted.unavailable_reason() or hosted
    try:
        sandbox = await _open_sandbox(settings, policy, parts, log)
    except SetupError as error:
        if settings.sandbox.kind not in (AUTO, BUBBLEWRAP):
            raise
        report = log.info if settings.sandbox.kind == AUTO else log.warning
        report(f"code execution is off: {error}")
        return str(error)
    return await _open_local(stack, sandbox, policy, parts, remote)


async def _open_local(
    stack: AsyncExitStack,
    sandbox: Sandbox,
    policy: ContainerPolicy,
    parts: ContainerDependencies,
    remote: RemoteContainers,
) -> LocalContainers:
    """Create the manager of the containers that this process runs, and let other processes use
    these containers by RPC calls. When ``stack`` is closed, the containers are closed.

    ``parts``: the parts of the server that containers need. ``remote``: reaches the containers of
    other processes.
    """
    local = LocalContainers(
        sandbox,
        policy,
        parts,
        remote,
        owner=parts.relay.owner,
        egress=partial(open_egress, dialer=Dialer(), clock=parts.clock, ids=parts.ids),
        predecessors=parts.relay.remove_abandoned(),
    )
    await stack.enter_async_context(local)
    await parts.relay.open(local)
    return local


def _code_python(settings: Settings) -> str | None:
    """Return the interpreter that the operator provides for code of models. None means the system's
    interpreter."""
    python = settings.sandbox.python or code_python()
    return str(python) if python is settings.sandbox.python or python.exists() else None


def _container_policy(settings: Settings) -> ContainerPolicy:
    from antiphon.sandbox.bubblewrap import importable_packages

    python = _code_python(settings) if settings.sandbox.kind in (AUTO, BUBBLEWRAP) else None
    return ContainerPolicy(
        idle_s=settings.sandbox.idle_s,
        memory=settings.sandbox.memory,
        disk_bytes=settings.sandbox.disk_mb << 20,
        processes=settings.sandbox.processes,
        code_timeout_s=settings.sandbox.code_timeout_s,
        domains=frozenset(domain.lower() for domain in settings.sandbox.domains),
        packages=() if python is None else importable_packages(python),
    )


async def _open_sandbox(
    settings: Settings, policy: ContainerPolicy, parts: ContainerDependencies, log: Log
) -> Sandbox:
    """Open a sandbox of the kind that the setting ``sandbox`` selects. Raises ``SetupError`` if
    such a sandbox cannot be used."""
    if settings.sandbox.kind in (AUTO, BUBBLEWRAP):
        return await _open_bubblewrap(settings, policy, log)
    sandbox: Sandbox
    if settings.sandbox.kind == KUBERNETES:
        sandbox = await _open_kubernetes(settings, parts.relay.owner.id, parts.clock, parts.ids)
    else:
        factory: SandboxFactory = _sandbox_plugin(settings.sandbox.kind)
        sandbox = await factory(settings)
    log.info("code execution is on, in sandboxes", sandbox=settings.sandbox.kind)
    return sandbox


def _sandbox_plugin(name: str) -> Any:
    return load_plugin(_SANDBOX_GROUP, name, setting="sandbox", built_in=BUILT_IN_SANDBOXES)


async def _open_kubernetes(
    settings: Settings, owner: str, clock: Callable[[], float], ids: Callable[[str], str]
) -> Sandbox:
    """Connect to a Kubernetes cluster that runs sandboxes in pods, and check that sandboxes work
    there. Raises ``SetupError`` if a setting has no effect in pods, or if the check fails."""
    require_package("aiohttp", "sandbox: the HTTP client", "fetch")
    if settings.sandbox.domains:
        raise SetupError("sandbox.domains: containers in Kubernetes have no network")
    if settings.sandbox.python is not None:
        raise SetupError("sandbox.python: containers in Kubernetes have the Python of their image")
    import aiohttp

    from antiphon.sandbox.kubernetes.api import KubernetesApi
    from antiphon.sandbox.kubernetes.sandbox import KubernetesSandbox, PodSettings

    api = KubernetesApi.open(
        settings.sandbox.kubernetes_url,
        settings.sandbox.kubernetes_credentials,
        settings.sandbox.namespace,
    )
    pods = PodSettings(pool=settings.sandbox.warm_pool, owner=owner, router=settings.sandbox.router)
    sandbox = KubernetesSandbox(api, aiohttp.ClientSession(), pods, clock=clock, ids=ids)
    try:
        await sandbox.check()
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def _open_bubblewrap(settings: Settings, policy: ContainerPolicy, log: Log) -> Sandbox:
    """Create a sandbox that uses bubblewrap, and check that it works. Raises ``SetupError`` if
    bubblewrap does not work on this machine."""
    from antiphon.sandbox.bubblewrap import BoxSetup, Bubblewrap
    from antiphon.sandbox.cgroups import ControlGroups

    setup = await asyncio.to_thread(BoxSetup.detect, _code_python(settings))
    groups = await asyncio.to_thread(ControlGroups.detect)
    sandbox = Bubblewrap(
        setup,
        default_limits=policy.box_limits("1g"),
        pool_size=settings.sandbox.pool,
        groups=groups,
    )
    version = await sandbox.check()
    report = log.debug if settings.sandbox.kind == AUTO else log.info
    report(
        "code execution is on, in sandboxes",
        python=version,
        program=setup.bwrap,
        control_groups=groups is not None,
    )
    return sandbox


# --- the relay to other processes ----------------------------------------------------------------


async def open_relay(
    stack: AsyncExitStack,
    settings: Settings,
    store: Store,
    folder: Path | None,
    url: str,
    clock: Clock,
    log: Log,
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
    if "://" not in settings.store or settings.sandbox.kind == "off":
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


def container_dependencies(
    settings: Settings,
    store: Store,
    files: Files,
    clock: Clock,
    relay: ContainerRelay,
    worker: WorkerContext | None = None,
) -> ContainerDependencies:
    """Return the parts of the server that containers need. ``worker``: see ``open_app``."""
    return ContainerDependencies(
        uploads=_Uploads(files),
        library=Skills(store, clock=clock, ids=create_id),
        clock=clock,
        ids=create_id,
        quotas=tenant_quotas(settings),
        directory=store.containers,
        relay=relay,
        host=None if worker is None else worker.containers,
    )


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
