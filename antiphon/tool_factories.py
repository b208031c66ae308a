"""The tools that run here, made of the settings: one function a tool, one table of them.

Heavy imports lie inside the functions. It knows no requests and no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.metadata import entry_points
from typing import Any

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.attachments.documents import Documents, Reader
from antiphon.attachments.fetch import Fetcher
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.security.encryption import Seal
from antiphon.security.ssrf import network
from antiphon.tools.base import Provider
from antiphon.tools.containers.container import Rules, Uploads
from antiphon.tools.containers.registry import Containers
from antiphon.tools.containers.skills import Library
from antiphon.tools.image_generation.base import ImageGenerator

__all__ = ["PROVIDERS", "ToolDependencies", "open_containers", "open_reader", "open_tools"]

_log = structlog.get_logger(__name__)


class ToolDependencies(Struct, frozen=True, kw_only=True):
    """What tools are made with. ``fetcher``: None where nothing may be fetched;
    ``containers``: None where no code is run; ``uploads``: what clients keep here; ``seal``: for
    what they carry, if they may carry anything. ``clock`` gives unix seconds."""

    settings: Settings
    clock: Callable[[], float]
    documents: Documents = field(default_factory=Documents)
    fetcher: Fetcher | None = None
    containers: Containers | None = None
    uploads: Uploads | None = None
    seal: Seal | None = None


@asynccontextmanager
async def open_containers(
    settings: Settings,
    log: Any,
    *,
    uploads: Uploads,
    library: Library,
    clock: Callable[[], float],
    ids: Callable[[str], str],
) -> AsyncIterator[Containers | None]:
    """Where code is run; None if it is off, or if this machine cannot isolate it, which is said in
    one line: nothing is ever run outside of a sandbox."""
    if settings.sandbox == "off":
        yield None
        return
    from antiphon.sandbox.bubblewrap import Bubblewrap, Built

    rules = Rules(
        idle_s=settings.sandbox_idle_s,
        most=settings.max_containers,
        memory=settings.sandbox_memory,
        disk_bytes=settings.sandbox_disk_mb << 20,
        processes=settings.sandbox_processes,
        code_s=settings.code_s,
    )
    python = None if settings.sandbox_python is None else str(settings.sandbox_python)
    try:
        built = await asyncio.to_thread(Built.find, python)
        sandbox = Bubblewrap(built, usual=rules.limits("1g"), pool=settings.sandbox_pool)
        version = await sandbox.check()
    except SetupError as error:
        log.warning(f"no code is run here: {error}")
        yield None
        return
    log.info("code runs in sandboxes", python=version, program=built.bwrap)
    async with Containers(
        sandbox, rules, uploads=uploads, library=library, clock=clock, ids=ids
    ) as containers:
        yield containers


@asynccontextmanager
async def open_reader(settings: Settings, log: Any) -> AsyncIterator[Reader | None]:
    """Where documents are read: in boxes, if there are any; None: in a process of their own, which
    is said in one line where boxes were wanted."""
    from antiphon.attachments.sandboxed_reader import BoxedReader, mounts

    if settings.sandbox == "off" or not (needed := mounts()):
        yield None
        return
    from antiphon.sandbox.bubblewrap import Bubblewrap, Built

    python = None if settings.sandbox_python is None else str(settings.sandbox_python)
    async with AsyncExitStack() as stack:
        reader = None
        try:
            built = replace(await asyncio.to_thread(Built.find, python), mounts=needed)
            sandbox = Bubblewrap(built)
            stack.push_async_callback(sandbox.close)
            reader = BoxedReader(sandbox, built.python)
            await reader.check()
        except SetupError as error:
            log.warning(f"documents are read outside of sandboxes: {error}")
            reader = None
        yield reader


#: Opens the providers of one tool, by the types of the request's tools they bring; none where the
#: operator did not ask for it. Raises ``SetupError``.
Opener = Callable[[ToolDependencies], AbstractAsyncContextManager[Mapping[str, Provider]]]


@asynccontextmanager
async def _web_search(means: ToolDependencies) -> AsyncIterator[Mapping[str, Provider]]:
    from antiphon.tools.web_search.index import Index
    from antiphon.tools.web_search.provider import TYPES, WebSearch

    settings = means.settings
    named = settings.web_search
    if named == "index" and not settings.web_index.is_file():
        _log.debug("web_search is off: fill an index with `antiphon index add`, or set web_search")
        named = "off"
    if named == "off":
        yield {}
        return
    if named == "index":
        index = Index(settings.web_index)
        try:
            yield dict.fromkeys(TYPES, WebSearch(index, is_external=False))
        finally:
            await index.close()
        return
    from antiphon.tools.web_search.ddgs import Ddgs
    from antiphon.tools.web_search.engines import Remote
    from antiphon.tools.web_search.live_web import Finder, Web

    if means.fetcher is None:
        raise SetupError(f"web_search = {named!r} opens pages: set fetch_urls")
    if named == "ddgs":
        finder: Finder = Ddgs.open()
    else:
        key, url = settings.web_search_key, settings.web_search_url
        finder = Remote.open(named, key=key, url=url)
    web = Web(finder, means.fetcher, means.documents)
    try:
        yield dict.fromkeys(TYPES, WebSearch(web, is_external=True))
    finally:
        await web.close()


@asynccontextmanager
async def _mcp(means: ToolDependencies) -> AsyncIterator[Mapping[str, Provider]]:
    """On by default, its extra is not: it is only missed where servers are set."""
    settings = means.settings
    if not settings.mcp:
        yield {}
        return
    try:
        from antiphon.tools.mcp.provider import Servers
        from antiphon.tools.mcp.sessions import Pool
        from antiphon.tools.mcp.transport import Server
    except ImportError:
        if any(each.tool is None for each in settings.mcp_servers.values()):
            raise SetupError('MCP servers need an extra: pip install "antiphon[mcp]".') from None
        yield {}
        return
    configured = {
        name: Server(
            url=each.url,
            transport=each.transport,
            headers=each.headers,
            command=each.command,
            args=each.args,
            env=each.env,
        )
        for name, each in settings.mcp_servers.items()
        if each.tool is None
    }
    pool = Pool(
        connect_s=settings.mcp_connect_s, call_s=settings.mcp_call_s, idle_s=settings.mcp_idle_s
    )
    servers = Servers(
        configured,
        pool,
        urls=settings.mcp_urls,
        networks=tuple(network(text, "mcp_networks") for text in settings.mcp_networks),
    )
    try:
        yield {"mcp": servers}
    finally:
        await servers.close()


@asynccontextmanager
async def _code_interpreter(means: ToolDependencies) -> AsyncIterator[Mapping[str, Provider]]:
    from antiphon.tools.code_interpreter import CodeInterpreter

    if means.containers is None:
        yield {}
        return
    yield {"code_interpreter": CodeInterpreter(means.containers)}


@asynccontextmanager
async def _image_generation(means: ToolDependencies) -> AsyncIterator[Mapping[str, Provider]]:
    settings = means.settings
    if settings.image_generation == "off":
        yield {}
        return
    from antiphon.tools.image_generation import provider
    from antiphon.tools.image_generation.conversation_images import Sources

    maker = await (_diffusers if settings.image_generation == "diffusers" else _images_api)(means)
    try:
        named = settings.image_generation_model
        rules = provider.Rules(
            model=named,
            models={**settings.image_generation_models, **({named: named} if named else {})},
            most_pixels=settings.image_generation_pixels,
            most_bytes=settings.image_generation_bytes,
            at_once=settings.image_generation_at_once,
        )
        sources = Sources(means.uploads, means.fetcher, settings.image_generation_bytes)
        yield {"image_generation": provider.ImageGeneration(maker, sources, rules)}
    finally:
        await maker.close()


async def _images_api(means: ToolDependencies) -> ImageGenerator:
    from antiphon.tools.image_generation.images_api import ImagesApi

    settings = means.settings
    if settings.image_generation_url is None:
        raise SetupError("image_generation = 'images_api' needs image_generation_url")
    return ImagesApi.open(
        settings.image_generation_url,
        key=settings.image_generation_key,
        told=settings.image_generation_options,
        fetcher=means.fetcher,
        most_bytes=settings.image_generation_bytes,
    )


async def _diffusers(means: ToolDependencies) -> ImageGenerator:
    from antiphon.tools.image_generation.diffusers import Diffusers

    settings = means.settings
    named = settings.image_generation_model
    if named is None:
        raise SetupError("image_generation = 'diffusers' needs image_generation_model")
    if other := sorted(set(settings.image_generation_models.values()) - {named}):
        raise SetupError(f"image_generation_models: {other[0]!r} is not the model that is loaded")
    return await asyncio.to_thread(Diffusers.load, named, settings.image_generation_options)


@asynccontextmanager
async def _programs(means: ToolDependencies) -> AsyncIterator[Mapping[str, Provider]]:
    """On by default, its extra is not."""
    from antiphon.sandbox.javascript import JavaScript
    from antiphon.tools.programs.provider import Programs

    settings = means.settings
    if not settings.programs or means.seal is None or not JavaScript.is_here():
        yield {}
        return
    javascript = JavaScript(
        step_s=settings.program_s, memory_bytes=settings.program_memory_mb << 20
    )
    programs = Programs(
        javascript, means.seal, clock=means.clock, most_calls=settings.max_program_calls
    )
    try:
        yield {"programmatic_tool_calling": programs}
    finally:
        javascript.close()


@asynccontextmanager
async def _clients(means: ToolDependencies) -> AsyncIterator[Mapping[str, Provider]]:
    """What clients run needs nothing here; of the shell the request says who does."""
    from antiphon.tools.client_tools.provider import CLIENT_TOOLS
    from antiphon.tools.shell import Shell

    yield {**CLIENT_TOOLS, "shell": Shell(means.containers)}


#: A tool → what opens its providers. Others come from entry points of the same group.
PROVIDERS: Mapping[str, Opener] = {
    "web_search": _web_search,
    "mcp": _mcp,
    "code_interpreter": _code_interpreter,
    "image_generation": _image_generation,
    "programs": _programs,
    "client": _clients,
}
_GROUP = "antiphon.tools"


@asynccontextmanager
async def open_tools(means: ToolDependencies) -> AsyncIterator[Mapping[str, Provider]]:
    """All that the settings ask for, by the types of tools. Raises ``SetupError``."""
    async with AsyncExitStack() as stack:
        found: dict[str, Provider] = {}
        for name, opener in (*PROVIDERS.items(), *_installed()):
            opened = await stack.enter_async_context(opener(means))
            if taken := sorted(found.keys() & opened.keys()):
                raise SetupError(f"tools {name} and another one both bring {taken[0]!r}")
            found.update(opened)
        yield found


def _installed() -> Iterator[tuple[str, Opener]]:
    """What other packages bring. Raises ``SetupError`` for one that cannot be loaded."""
    for point in entry_points(group=_GROUP):
        try:
            yield point.name, point.load()
        except Exception as error:
            raise SetupError(f"tool {point.name} cannot be loaded: {error}") from None
