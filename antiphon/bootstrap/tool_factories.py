"""Create the providers of the server-side tools from the settings. The table ``PROVIDERS`` maps the
name of each tool to the function that opens its providers.

Modules that load slowly are imported inside these functions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Fetcher
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.security.encryption import Encryptor
from antiphon.security.ssrf import parse_network
from antiphon.support.installation import antiphon_command, needs_extra
from antiphon.support.log import Log
from antiphon.support.plugins import load_plugins
from antiphon.tools.base import AnyToolProvider
from antiphon.tools.containers.container import Uploads
from antiphon.tools.containers.registry import ContainerRegistry
from antiphon.tools.unavailable_tool import UnavailableTool

from .attachments import why_no_fetcher
from .containers import ContainerDependencies, open_containers

if TYPE_CHECKING:
    from antiphon.tools.mcp.calls import McpCaller
    from antiphon.tools.mcp.endpoint import McpEndpoint


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


#: Function that opens the providers of one tool, by tool type. The provider is an
#: ``UnavailableTool`` if the settings turn the tool off or if the tool does not work on this
#: machine. Raises ``SetupError``.
ProviderOpener = Callable[
    [ToolDependencies], AbstractAsyncContextManager[Mapping[str, AnyToolProvider]]
]


@asynccontextmanager
async def _web_search(
    dependencies: ToolDependencies,
) -> AsyncIterator[Mapping[str, AnyToolProvider]]:
    from antiphon.tools.web_search.index import LocalIndex
    from antiphon.tools.web_search.provider import TYPES, WebSearchProvider

    settings = dependencies.settings
    if _is_implemented(settings, "web_search"):
        yield {}
        return
    setting = settings.web_search.engine
    if setting == "off":
        yield dict.fromkeys(TYPES, UnavailableTool("The setting web_search is off."))
        return
    if setting == "index":
        index = LocalIndex(settings.web_search.index, _no_index)
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
        raise SetupError(f"web_search.engine = {setting!r} fetches pages: set fetch_urls")
    if setting == "ddgs":
        engine: SearchEngine = Ddgs.open(proxy_variables())
    else:
        key, url = settings.web_search.key, settings.web_search.url
        engine = HttpSearchEngine.open(setting, key=key, url=url)
    web = LiveWeb(engine, dependencies.fetcher, dependencies.documents)
    try:
        yield dict.fromkeys(TYPES, WebSearchProvider(web, is_external=True))
    finally:
        await web.close()


@asynccontextmanager
async def _web_fetch(
    dependencies: ToolDependencies,
) -> AsyncIterator[Mapping[str, AnyToolProvider]]:
    from antiphon.tools.web_search.live_web import LiveWeb
    from antiphon.tools.web_search.provider import FETCH_TYPE, WebSearchProvider

    if dependencies.fetcher is None:
        yield {FETCH_TYPE: UnavailableTool(why_no_fetcher(dependencies.settings))}
        return
    web = LiveWeb(None, dependencies.fetcher, dependencies.documents)
    yield {FETCH_TYPE: WebSearchProvider(web, is_external=True)}


def _is_implemented(settings: Settings, tool: str) -> bool:
    """Return whether an MCP server in the settings takes the place of the built-in tool
    ``tool``."""
    return settings.mcp.enabled is not False and any(
        server.implements == tool for server in settings.mcp.servers.values()
    )


def _no_index() -> str:
    return f"There is no index to search. To make one: {antiphon_command('index add FOLDER')}"


@asynccontextmanager
async def _mcp(dependencies: ToolDependencies) -> AsyncIterator[Mapping[str, AnyToolProvider]]:
    """Open the provider for tools of MCP servers, and the providers of built-in tools that MCP
    servers implement.

    These providers need the extra ``mcp``. If this extra is not installed, the tool ``mcp`` is
    unavailable. If the settings nevertheless contain MCP servers or set ``mcp`` to true, this
    function raises ``SetupError``.
    """
    settings = dependencies.settings
    if not settings.mcp.enabled:
        yield {"mcp": UnavailableTool("The setting mcp is false.")}
        return
    if find_spec("mcp") is None:  # only checked: its import takes a second
        reason = needs_extra("The MCP client is not installed", "mcp")
        has_servers = any(server.tool is None for server in settings.mcp.servers.values())
        if has_servers or settings.mcp.enabled is True:
            raise SetupError(reason) from None
        yield {"mcp": UnavailableTool(reason)}
        return
    from antiphon.tools.mcp.endpoint import McpEndpoint, OAuthClient
    from antiphon.tools.mcp.provider import McpProvider
    from antiphon.tools.mcp.sessions import SessionPool

    configured = {
        name: McpEndpoint(
            url=server.url,
            transport=server.transport,
            headers=server.headers,
            oauth=OAuthClient(
                token_url=server.oauth_token_url,
                client_id=server.oauth_client_id,
                client_secret=server.oauth_client_secret,
                scope=server.oauth_scope,
            )
            if server.oauth_token_url
            else None,
            command=server.command,
            args=server.args,
            env=server.env,
            shares_sessions=server.session == "tenant",
        )
        for name, server in settings.mcp.servers.items()
        if server.tool is None
    }
    pool = SessionPool(
        connect_s=settings.mcp.connect_s,
        call_s=settings.mcp.call_s,
        idle_s=settings.mcp.idle_s,
        max_sessions=settings.mcp.max_sessions,
    )
    servers = McpProvider(
        configured,
        pool,
        allow_urls=settings.mcp.urls,
        networks=tuple(
            parse_network(text, "mcp.allowed_networks") for text in settings.mcp.allowed_networks
        ),
        fails_response=settings.mcp.unreachable == "fail",
    )
    try:
        yield {"mcp": servers, **_implementations(settings, configured, servers.caller)}
    finally:
        await servers.close()


def _implementations(
    settings: Settings, configured: Mapping[str, McpEndpoint], caller: McpCaller
) -> dict[str, AnyToolProvider]:
    """Return the providers of built-in tools, such as ``web_search``, that MCP servers implement.
    The keys are tool types."""
    from antiphon.tools.mcp.implementations import (
        BuiltInTool,
        McpImplementation,
        code_interpreter,
        web_search,
    )
    from antiphon.tools.web_search.provider import TYPES

    kinds: Mapping[str, tuple[Sequence[str], BuiltInTool[Any]]] = {
        "web_search": (TYPES, web_search),
        "code_interpreter": (("code_interpreter",), code_interpreter),
    }
    providers: dict[str, AnyToolProvider] = {}
    for name, server in settings.mcp.servers.items():
        if (row := kinds.get(server.implements or "")) is not None:
            types, kind = row
            provider = McpImplementation(kind, name, configured[name], caller)
            providers.update(dict.fromkeys(types, provider))
    return providers


@asynccontextmanager
async def _code_interpreter(
    dependencies: ToolDependencies,
) -> AsyncIterator[Mapping[str, AnyToolProvider]]:
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
) -> AsyncIterator[Mapping[str, AnyToolProvider]]:
    settings = dependencies.settings.image_generation
    if settings.url is None:
        yield {"image_generation": UnavailableTool(_no_images())}
        return
    from antiphon.tools.image_generation import provider
    from antiphon.tools.image_generation.conversation_images import ImageSources
    from antiphon.tools.image_generation.images_api import ImagesApi

    generator = ImagesApi.open(
        settings.url,
        key=settings.key,
        settings=settings.options,
        fetcher=dependencies.fetcher,
        max_bytes=settings.max_bytes,
    )
    try:
        model = settings.model
        policy = provider.ImagePolicy(
            model=model,
            models={**settings.models, **({model: model} if model else {})},
            max_pixels=settings.max_pixels,
            max_bytes=settings.max_bytes,
            concurrency=settings.parallel,
        )
        sources = ImageSources(dependencies.uploads, dependencies.fetcher, settings.max_bytes)
        yield {"image_generation": provider.ImageGenerationProvider(generator, sources, policy)}
    finally:
        await generator.close()


def _no_images() -> str:
    command = antiphon_command("serve --image-generation-url URL")
    return f"No generator of images is configured. To use a server with the Images API: {command}"


@asynccontextmanager
async def _programs(dependencies: ToolDependencies) -> AsyncIterator[Mapping[str, AnyToolProvider]]:
    """Open the provider of the tool ``programmatic_tool_calling``.

    The tool needs the extra ``programs``. If this extra is not installed and the setting
    ``programs`` is true, raises ``SetupError``. If it is not installed and the setting is ``auto``,
    the provider reports the tool as unavailable.
    """
    from antiphon.sandbox.javascript import JavaScript
    from antiphon.tools.programs.provider import ProgramProvider

    settings = dependencies.settings
    if not settings.programs.enabled or dependencies.encryptor is None:
        yield {_PROGRAMS: UnavailableTool("The setting programs is false.")}
        return
    if not JavaScript.is_installed():
        reason = needs_extra("The runtime of programs is not installed", "programs")
        if settings.programs.enabled is True:
            raise SetupError(reason)
        yield {_PROGRAMS: UnavailableTool(reason)}
        return
    javascript = JavaScript(
        step_s=settings.programs.cpu_timeout_s, memory_bytes=settings.programs.memory_mb << 20
    )
    programs = ProgramProvider(
        javascript,
        dependencies.encryptor,
        clock=dependencies.clock,
        max_calls=settings.programs.max_calls,
    )
    try:
        yield {_PROGRAMS: programs}
    finally:
        javascript.close()


@asynccontextmanager
async def _client_tools(
    dependencies: ToolDependencies,
) -> AsyncIterator[Mapping[str, AnyToolProvider]]:
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
    "web_fetch": _web_fetch,
    "mcp": _mcp,
    "code_interpreter": _code_interpreter,
    "image_generation": _image_generation,
    "programs": _programs,
    "client": _client_tools,
}


_TOOL_GROUP = "antiphon.tools"


@asynccontextmanager
async def open_tools(
    dependencies: ToolDependencies,
) -> AsyncIterator[Mapping[str, AnyToolProvider]]:
    """Open all tools. Yields the providers by tool type. A tool that is off has an
    ``UnavailableTool`` as its provider. Raises ``SetupError``."""
    async with AsyncExitStack() as stack:
        providers: dict[str, AnyToolProvider] = {}
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


async def open_server_tools(
    stack: AsyncExitStack,
    settings: Settings,
    parts: ContainerDependencies,
    seal: Encryptor,
    fetcher: Fetcher | None,
    documents: Documents,
    log: Log,
) -> tuple[ContainerRegistry | None, Mapping[str, AnyToolProvider]]:
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


_PROGRAMS = "programmatic_tool_calling"
