"""Create the providers of the server-side tools from the settings. The table ``PROVIDERS`` maps the
name of each tool to the function that opens its providers.

Modules that load slowly are imported inside these functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.attachments.documents import DocumentReader, Documents
from antiphon.attachments.fetch import Fetcher
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.ipc.calls import Calls
from antiphon.limits.quotas import TenantQuotas
from antiphon.sandbox.base import Sandbox
from antiphon.sandbox.egress.dialer import Dialer
from antiphon.security.encryption import Encryptor
from antiphon.security.ssrf import parse_network
from antiphon.store.containers import ContainerDirectory
from antiphon.support.installation import antiphon_command, needs_extra
from antiphon.support.plugins import load_plugin, load_plugins
from antiphon.tools.base import ToolProvider
from antiphon.tools.containers.container import ContainerPolicy, Uploads
from antiphon.tools.containers.hosted import HostedContainers
from antiphon.tools.containers.local import LocalContainers
from antiphon.tools.containers.network import open_egress
from antiphon.tools.containers.registry import ContainerRegistry
from antiphon.tools.containers.relay import ContainerRelay
from antiphon.tools.containers.remote import RemoteContainers
from antiphon.tools.containers.skills import SkillLibrary
from antiphon.tools.image_generation.base import ImageGenerator
from antiphon.tools.unavailable_tool import UnavailableTool

if TYPE_CHECKING:
    from antiphon.tools.mcp.endpoint import McpEndpoint
    from antiphon.tools.mcp.sessions import SessionPool

__all__ = [
    "IMAGE_GENERATORS",
    "PROVIDERS",
    "ContainerDependencies",
    "ContainerSetup",
    "SandboxFactory",
    "ToolDependencies",
    "open_containers",
    "open_reader",
    "open_tools",
    "prepare_control_groups",
    "runs_code",
]

#: Function that opens a sandbox from the settings. Other packages register such a function as an
#: entry point of the group ``antiphon.sandboxes``. The setting ``sandbox`` contains its name.
#: Raises ``SetupError``.
SandboxFactory = Callable[[Settings], Awaitable[Sandbox]]

_BUBBLEWRAP, _KUBERNETES, _AUTO, _OFF = "bubblewrap", "kubernetes", "auto", "off"
_BUILT_IN_SANDBOXES = (_AUTO, _OFF, _BUBBLEWRAP, _KUBERNETES)
_PROGRAMS = "programmatic_tool_calling"
_SANDBOX_GROUP = "antiphon.sandboxes"


class ToolDependencies(Struct, frozen=True, kw_only=True):
    """The parts of the server that tools need.

    - ``clock`` returns Unix seconds.
    - ``fetcher``: the URL fetcher. It is None if the server fetches no URLs.
    - ``containers``: the registry of containers. It is None if the server runs no code.
    - ``no_containers``: the reason why the server runs no code.
    - ``uploads``: the files that clients have uploaded.
    - ``encryptor``: encrypts the state that tools give to clients. Clients send this state back in
      later requests. If ``encryptor`` is None, tools must not give state to clients.
    """

    settings: Settings
    clock: Callable[[], float]
    documents: Documents = field(default_factory=Documents)
    fetcher: Fetcher | None = None
    containers: ContainerRegistry | None = None
    no_containers: str = "The setting sandbox is off."
    uploads: Uploads | None = None
    encryptor: Encryptor | None = None


def runs_code(settings: Settings) -> bool:
    """Return whether the settings allow the server to run code in sandboxes."""
    return settings.sandbox != _OFF


def prepare_control_groups(settings: Settings) -> None:
    """Create control groups (cgroups) for sandboxes below the group of this process, if this is
    permitted.

    Call this before child processes are started. A group that limits its child groups must not
    contain processes itself. So this process moves into one of the new groups. Later child
    processes start in the same group. Blocks briefly.
    """
    if settings.sandbox in (_AUTO, _BUBBLEWRAP):
        from antiphon.sandbox.cgroups import ControlGroups

        ControlGroups.detect()


class ContainerDependencies(Struct, frozen=True, kw_only=True):
    """The parts of the server that containers need. A container is a sandbox in which tools run
    code.

    - ``uploads``: the files that clients have uploaded.
    - ``library``: the skills that clients have uploaded.
    - ``clock`` returns Unix seconds.
    - ``directory``: the list of the containers of all processes that use the store.
    - ``relay``: connects to the containers of other processes.
    - ``host``: RPC client of the process that owns the containers of all workers. If it is None,
      this process owns the containers that it creates.
    """

    uploads: Uploads
    library: SkillLibrary
    clock: Callable[[], float]
    ids: Callable[[str], str]
    quotas: TenantQuotas
    directory: ContainerDirectory
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
    settings: Settings, log: Any, parts: ContainerDependencies
) -> AsyncIterator[ContainerSetup]:
    """Open the containers that run code.

    The result has no containers if code execution is off or if bubblewrap does not work on this
    machine, because code never runs outside of a sandbox. If bubblewrap does not work, the reason
    is logged. Raises ``SetupError`` if Kubernetes or a plug-in does not work.
    """
    if not runs_code(settings):
        yield ContainerSetup()
        return
    policy = _container_policy(settings)
    remote = RemoteContainers(parts.directory, parts.relay.connect)
    async with AsyncExitStack() as stack:
        maker = await _open_maker(stack, settings, policy, parts, remote, log)
        if isinstance(maker, str):
            yield ContainerSetup(None, maker)
            return
        stack.push_async_callback(parts.relay.close)
        registry = ContainerRegistry(
            maker,
            policy,
            uploads=parts.uploads,
            library=parts.library,
            directory=parts.directory,
            remote=remote,
            quotas=parts.quotas,
        )
        yield ContainerSetup(registry, "", maker if isinstance(maker, LocalContainers) else None)


async def _open_maker(
    stack: AsyncExitStack,
    settings: Settings,
    policy: ContainerPolicy,
    parts: ContainerDependencies,
    remote: RemoteContainers,
    log: Any,
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
        if settings.sandbox not in (_AUTO, _BUBBLEWRAP):
            raise
        report = log.info if settings.sandbox == _AUTO else log.warning
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
        uploads=parts.uploads,
        library=parts.library,
        clock=parts.clock,
        ids=parts.ids,
        directory=parts.directory,
        owner=parts.relay.owner,
        remote=remote,
        quotas=parts.quotas,
        egress=partial(open_egress, dialer=Dialer(), clock=parts.clock, ids=parts.ids),
        predecessors=parts.relay.remove_abandoned(),
    )
    await stack.enter_async_context(local)
    await parts.relay.open(local)
    return local


def _container_policy(settings: Settings) -> ContainerPolicy:
    return ContainerPolicy(
        idle_s=settings.sandbox_idle_s,
        memory=settings.sandbox_memory,
        disk_bytes=settings.sandbox_disk_mb << 20,
        processes=settings.sandbox_processes,
        code_timeout_s=settings.code_timeout_s,
        domains=frozenset(domain.lower() for domain in settings.sandbox_domains),
    )


async def _open_sandbox(
    settings: Settings, policy: ContainerPolicy, parts: ContainerDependencies, log: Any
) -> Sandbox:
    """Open a sandbox of the kind that the setting ``sandbox`` selects. Raises ``SetupError`` if
    such a sandbox cannot be used."""
    if settings.sandbox in (_AUTO, _BUBBLEWRAP):
        return await _open_bubblewrap(settings, policy, log)
    sandbox: Sandbox
    if settings.sandbox == _KUBERNETES:
        sandbox = await _open_kubernetes(settings, parts.relay.owner.id, parts.clock, parts.ids)
    else:
        factory: SandboxFactory = _sandbox_plugin(settings.sandbox)
        sandbox = await factory(settings)
    log.info("code execution is on, in sandboxes", sandbox=settings.sandbox)
    return sandbox


def _sandbox_plugin(name: str) -> Any:
    return load_plugin(_SANDBOX_GROUP, name, setting="sandbox", built_in=_BUILT_IN_SANDBOXES)


async def _open_kubernetes(
    settings: Settings, owner: str, clock: Callable[[], float], ids: Callable[[str], str]
) -> Sandbox:
    """Connect to a Kubernetes cluster that runs sandboxes in pods, and check that sandboxes work
    there. Raises ``SetupError`` if a setting has no effect in pods, or if the check fails."""
    if find_spec("aiohttp") is None:
        raise SetupError(needs_extra("sandbox: the HTTP client is not installed", "fetch"))
    if settings.sandbox_domains:
        raise SetupError("sandbox_domains: containers in Kubernetes have no network")
    if settings.sandbox_python is not None:
        raise SetupError("sandbox_python: containers in Kubernetes have the Python of their image")
    import aiohttp

    from antiphon.sandbox.kubernetes.api import KubernetesApi
    from antiphon.sandbox.kubernetes.sandbox import KubernetesSandbox, PodSettings

    api = KubernetesApi.open(
        settings.kubernetes_url, settings.kubernetes_credentials, settings.sandbox_namespace
    )
    pods = PodSettings(pool=settings.sandbox_warm_pool, owner=owner, router=settings.sandbox_router)
    sandbox = KubernetesSandbox(api, aiohttp.ClientSession(), pods, clock=clock, ids=ids)
    try:
        await sandbox.check()
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def _open_bubblewrap(settings: Settings, policy: ContainerPolicy, log: Any) -> Sandbox:
    """Create a sandbox that uses bubblewrap, and check that it works. Raises ``SetupError`` if
    bubblewrap does not work on this machine."""
    from antiphon.sandbox.bubblewrap import BoxSetup, Bubblewrap
    from antiphon.sandbox.cgroups import ControlGroups

    python = None if settings.sandbox_python is None else str(settings.sandbox_python)
    setup = await asyncio.to_thread(BoxSetup.detect, python)
    groups = await asyncio.to_thread(ControlGroups.detect)
    sandbox = Bubblewrap(
        setup,
        default_limits=policy.box_limits("1g"),
        pool_size=settings.sandbox_pool,
        groups=groups,
    )
    version = await sandbox.check()
    report = log.debug if settings.sandbox == _AUTO else log.info
    report(
        "code execution is on, in sandboxes",
        python=version,
        program=setup.bwrap,
        control_groups=groups is not None,
    )
    return sandbox


@asynccontextmanager
async def open_reader(settings: Settings, log: Any) -> AsyncIterator[DocumentReader | None]:
    """Open a reader that extracts the text of documents in a sandbox.

    Yields None if the extraction library is not installed, or if bubblewrap is not used or does not
    work. Documents are then read in a subprocess without a sandbox. If bubblewrap does not work,
    the reason is logged.
    """
    from antiphon.attachments.sandboxed_reader import SandboxedReader, mounts

    if settings.sandbox == _OFF or not (needed := mounts()):
        yield None
        return
    if settings.sandbox not in (_AUTO, _BUBBLEWRAP):
        log.info("documents are read in a subprocess without a sandbox", sandbox=settings.sandbox)
        yield None
        return
    from antiphon.sandbox.bubblewrap import BoxSetup, Bubblewrap
    from antiphon.sandbox.cgroups import ControlGroups

    python = None if settings.sandbox_python is None else str(settings.sandbox_python)
    async with AsyncExitStack() as stack:
        reader = None
        try:
            setup = replace(await asyncio.to_thread(BoxSetup.detect, python), mounts=needed)
            sandbox = Bubblewrap(setup, groups=await asyncio.to_thread(ControlGroups.detect))
            stack.push_async_callback(sandbox.close)
            reader = SandboxedReader(sandbox, setup.python)
            await reader.check()
        except SetupError as error:
            report = log.info if settings.sandbox == _AUTO else log.warning
            report(f"documents are read without a sandbox: {error}")
            reader = None
        yield reader


#: Function that opens the providers of one tool, by tool type. The provider is an
#: ``UnavailableTool`` if the settings turn the tool off or if the tool does not work on this
#: machine. Raises ``SetupError``.
ProviderOpener = Callable[
    [ToolDependencies], AbstractAsyncContextManager[Mapping[str, ToolProvider]]
]


@asynccontextmanager
async def _web_search(dependencies: ToolDependencies) -> AsyncIterator[Mapping[str, ToolProvider]]:
    from antiphon.tools.web_search.local_index import LocalIndex
    from antiphon.tools.web_search.provider import TYPES, WebSearchProvider

    settings = dependencies.settings
    if _is_implemented(settings, "web_search"):
        yield {}
        return
    setting = settings.web_search
    if setting == "off":
        yield dict.fromkeys(TYPES, UnavailableTool("The setting web_search is off."))
        return
    if setting == "index":
        index = LocalIndex(settings.web_index, _no_index)
        provider = WebSearchProvider(
            index, is_external=False, unavailable_reason=index.unavailable_reason
        )
        try:
            yield dict.fromkeys(TYPES, provider)
        finally:
            await index.close()
        return
    from antiphon.config.load import proxy_variables
    from antiphon.tools.web_search.ddgs import Ddgs
    from antiphon.tools.web_search.engines import HttpSearchEngine
    from antiphon.tools.web_search.live_web import LiveWeb, SearchEngine

    if dependencies.fetcher is None:
        raise SetupError(f"web_search = {setting!r} fetches pages: set fetch_urls")
    if setting == "ddgs":
        engine: SearchEngine = Ddgs.open(proxy_variables())
    else:
        key, url = settings.web_search_key, settings.web_search_url
        engine = HttpSearchEngine.open(setting, key=key, url=url)
    web = LiveWeb(engine, dependencies.fetcher, dependencies.documents)
    try:
        yield dict.fromkeys(TYPES, WebSearchProvider(web, is_external=True))
    finally:
        await web.close()


def _is_implemented(settings: Settings, tool: str) -> bool:
    """Return whether an MCP server in the settings takes the place of the built-in tool
    ``tool``."""
    return settings.mcp is not False and any(
        server.implements == tool for server in settings.mcp_servers.values()
    )


def _no_index() -> str:
    return f"There is no index to search. To make one: {antiphon_command('index add FOLDER')}"


@asynccontextmanager
async def _mcp(dependencies: ToolDependencies) -> AsyncIterator[Mapping[str, ToolProvider]]:
    """Open the provider for tools of MCP servers, and the providers of built-in tools that MCP
    servers implement.

    These providers need the extra ``mcp``. If this extra is not installed, the tool ``mcp`` is
    unavailable. If the settings nevertheless contain MCP servers or set ``mcp`` to true, this
    function raises ``SetupError``.
    """
    settings = dependencies.settings
    if not settings.mcp:
        yield {"mcp": UnavailableTool("The setting mcp is false.")}
        return
    if find_spec("mcp") is None:  # only checked: its import takes a second
        reason = needs_extra("The MCP client is not installed", "mcp")
        has_servers = any(server.tool is None for server in settings.mcp_servers.values())
        if has_servers or settings.mcp is True:
            raise SetupError(reason) from None
        yield {"mcp": UnavailableTool(reason)}
        return
    from antiphon.tools.mcp.endpoint import McpEndpoint
    from antiphon.tools.mcp.provider import McpProvider
    from antiphon.tools.mcp.sessions import SessionPool

    configured = {
        name: McpEndpoint(
            url=server.url,
            transport=server.transport,
            headers=server.headers,
            command=server.command,
            args=server.args,
            env=server.env,
            shares_sessions=server.session == "tenant",
        )
        for name, server in settings.mcp_servers.items()
        if server.tool is None
    }
    pool = SessionPool(
        connect_s=settings.mcp_connect_s,
        call_s=settings.mcp_call_s,
        idle_s=settings.mcp_idle_s,
        max_sessions=settings.mcp_max_sessions,
    )
    servers = McpProvider(
        configured,
        pool,
        allow_urls=settings.mcp_urls,
        networks=tuple(
            parse_network(text, "mcp_allowed_networks") for text in settings.mcp_allowed_networks
        ),
        fails_response=settings.mcp_unreachable == "fail",
    )
    try:
        yield {"mcp": servers, **_implementations(settings, configured, pool)}
    finally:
        await servers.close()


def _implementations(
    settings: Settings, configured: Mapping[str, McpEndpoint], pool: SessionPool
) -> dict[str, ToolProvider]:
    """Return the providers of built-in tools, such as ``web_search``, that MCP servers implement.
    The keys are tool types."""
    from antiphon.tools.mcp.implementations import McpImplementation, code_interpreter, web_search
    from antiphon.tools.web_search.provider import TYPES

    kinds = {
        "web_search": (TYPES, web_search),
        "code_interpreter": (("code_interpreter",), code_interpreter),
    }
    providers: dict[str, ToolProvider] = {}
    for name, server in settings.mcp_servers.items():
        if server.implements is not None:
            types, kind = kinds[server.implements]
            provider = McpImplementation(kind, name, configured[name], pool)
            providers.update(dict.fromkeys(types, provider))
    return providers


@asynccontextmanager
async def _code_interpreter(
    dependencies: ToolDependencies,
) -> AsyncIterator[Mapping[str, ToolProvider]]:
    from antiphon.tools.code_interpreter import CodeInterpreterProvider

    if _is_implemented(dependencies.settings, "code_interpreter"):
        yield {}
        return
    if dependencies.containers is None:
        yield {"code_interpreter": UnavailableTool(dependencies.no_containers)}
        return
    yield {"code_interpreter": CodeInterpreterProvider(dependencies.containers)}


@asynccontextmanager
async def _image_generation(
    dependencies: ToolDependencies,
) -> AsyncIterator[Mapping[str, ToolProvider]]:
    settings = dependencies.settings
    if settings.image_generation == "off":
        yield {"image_generation": UnavailableTool(_no_images())}
        return
    from antiphon.tools.image_generation import provider
    from antiphon.tools.image_generation.conversation_images import ImageSources

    generator = await IMAGE_GENERATORS[settings.image_generation](dependencies)
    try:
        model = settings.image_generation_model
        policy = provider.ImagePolicy(
            model=model,
            models={**settings.image_generation_models, **({model: model} if model else {})},
            max_pixels=settings.image_generation_max_pixels,
            max_bytes=settings.image_generation_max_bytes,
            concurrency=settings.image_generation_parallel,
        )
        sources = ImageSources(
            dependencies.uploads, dependencies.fetcher, settings.image_generation_max_bytes
        )
        yield {"image_generation": provider.ImageGenerationProvider(generator, sources, policy)}
    finally:
        await generator.close()


def _no_images() -> str:
    command = antiphon_command("serve --image-generation images_api --image-generation-url URL")
    return f"No generator of images is configured. To use a server with the Images API: {command}"


async def _images_api(dependencies: ToolDependencies) -> ImageGenerator:
    from antiphon.tools.image_generation.images_api import ImagesApi

    settings = dependencies.settings
    if settings.image_generation_url is None:
        raise SetupError("image_generation = 'images_api' needs image_generation_url")
    return ImagesApi.open(
        settings.image_generation_url,
        key=settings.image_generation_key,
        settings=settings.image_generation_options,
        fetcher=dependencies.fetcher,
        max_bytes=settings.image_generation_max_bytes,
    )


async def _diffusers(dependencies: ToolDependencies) -> ImageGenerator:
    from antiphon.tools.image_generation.diffusers import Diffusers

    settings = dependencies.settings
    model = settings.image_generation_model
    if model is None:
        raise SetupError("image_generation = 'diffusers' needs image_generation_model")
    if others := sorted(set(settings.image_generation_models.values()) - {model}):
        raise SetupError(f"image_generation_models: {others[0]!r} is not image_generation_model")
    return await asyncio.to_thread(Diffusers.load, model, settings.image_generation_options)


#: Value of the setting ``image_generation`` → function that creates the generator. The functions
#: raise ``SetupError``.
IMAGE_GENERATORS: Mapping[str, Callable[[ToolDependencies], Awaitable[ImageGenerator]]] = {
    "diffusers": _diffusers,
    "images_api": _images_api,
}


@asynccontextmanager
async def _programs(dependencies: ToolDependencies) -> AsyncIterator[Mapping[str, ToolProvider]]:
    """Open the provider of the tool ``programmatic_tool_calling``.

    The tool needs the extra ``programs``. If this extra is not installed and the setting
    ``programs`` is true, raises ``SetupError``. If it is not installed and the setting is ``auto``,
    the provider reports the tool as unavailable.
    """
    from antiphon.sandbox.javascript import JavaScript
    from antiphon.tools.programs.provider import ProgramProvider

    settings = dependencies.settings
    if not settings.programs or dependencies.encryptor is None:
        yield {_PROGRAMS: UnavailableTool("The setting programs is false.")}
        return
    if not JavaScript.is_installed():
        reason = needs_extra("The runtime of programs is not installed", "programs")
        if settings.programs is True:
            raise SetupError(reason)
        yield {_PROGRAMS: UnavailableTool(reason)}
        return
    javascript = JavaScript(
        step_s=settings.program_cpu_timeout_s, memory_bytes=settings.program_memory_mb << 20
    )
    programs = ProgramProvider(
        javascript,
        dependencies.encryptor,
        clock=dependencies.clock,
        max_calls=settings.max_program_calls,
    )
    try:
        yield {_PROGRAMS: programs}
    finally:
        javascript.close()


@asynccontextmanager
async def _client_tools(
    dependencies: ToolDependencies,
) -> AsyncIterator[Mapping[str, ToolProvider]]:
    """Open the tools whose calls are executed by clients, and the tool ``shell``. The commands of
    ``shell`` run on the client or in a container of the server, as the request selects."""
    from antiphon.tools.client_tools.provider import CLIENT_TOOLS
    from antiphon.tools.shell import ShellProvider

    shell = ShellProvider(dependencies.containers, dependencies.no_containers)
    yield {**CLIENT_TOOLS, "shell": shell}


#: Name of a tool → function that opens its providers. Other packages add tools as entry points of
#: the group ``antiphon.tools``.
PROVIDERS: Mapping[str, ProviderOpener] = {
    "web_search": _web_search,
    "mcp": _mcp,
    "code_interpreter": _code_interpreter,
    "image_generation": _image_generation,
    "programs": _programs,
    "client": _client_tools,
}
_TOOL_GROUP = "antiphon.tools"


@asynccontextmanager
async def open_tools(dependencies: ToolDependencies) -> AsyncIterator[Mapping[str, ToolProvider]]:
    """Open all tools. Yields the providers by tool type. A tool that is off has an
    ``UnavailableTool`` as its provider. Raises ``SetupError``."""
    async with AsyncExitStack() as stack:
        providers: dict[str, ToolProvider] = {}
        owners: dict[str, str] = {}  # tool type → name of the tool or plug-in that provides it
        for name, opener in (*PROVIDERS.items(), *load_plugins(_TOOL_GROUP)):
            new = await stack.enter_async_context(opener(dependencies))
            if duplicates := sorted(owners.keys() & new.keys()):
                raise SetupError(
                    f"tool {name}: the tool {owners[duplicates[0]]} already provides"
                    f" {duplicates[0]!r}; turn one of them off"
                )
            providers.update(new)
            owners |= {
                type: name for type, one in new.items() if not isinstance(one, UnavailableTool)
            }
        yield providers
