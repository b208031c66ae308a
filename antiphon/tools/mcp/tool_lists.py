"""The lists of tools that MCP servers offer. A list is cached for as long as its server allows
(``ttlMs``), so most requests need no round trip for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import Struct

from antiphon.support.aging_cache import AgingCache

from .request import ListedTool
from .sessions import SessionKey, SessionPool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp import Client
    from mcp_types import RequestParamsMeta

_MAX_PAGES = 100
_MAX_TOOLS = 1_000
#: The size of all cached lists together, as JSON.
_MAX_BYTES = 16 * 2**20
_MAX_AGE_S = 24 * 3600.0


class _ToolList(Struct, frozen=True):
    """The tools of an MCP server. ``max_age_s``: how long the list may be used. ``is_public``:
    whether the server allows that other tenants use it."""

    tools: tuple[ListedTool, ...]
    max_age_s: float
    is_public: bool


class ToolLists:
    """Lists the tools of MCP servers.

    A list that a server calls public is shared between tenants only if Antiphon sends no
    credentials to this server.
    """

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool
        self._cache: AgingCache[_ToolList] = AgingCache(max_bytes=_MAX_BYTES, max_age_s=_MAX_AGE_S)
        #: Number of calls of ``forget``. If it grows while a list is fetched, the list may be out
        #: of date, and is not cached.
        self._forgotten = 0

    async def get(self, session: SessionKey, trace: Mapping[str, str]) -> tuple[ListedTool, ...]:
        """Return the tools of an MCP server, from the cache if possible. ``trace``: the trace
        context to send. Raises ``McpFailure``."""
        if (cached := self.cached(session)) is not None:
            return cached
        forgotten = self._forgotten
        found = await self._pool.call(session, lambda client: _fetch(client, dict(trace)))
        if found.max_age_s > 0 and forgotten == self._forgotten:
            server = session.server
            shared = found.is_public and not (server.headers or server.env or server.oauth)
            own, public = _keys(session)
            size = len(msgspec.json.encode(found.tools))
            self._cache.add(public if shared else own, found, size)
        return found.tools

    def cached(self, session: SessionKey) -> tuple[ListedTool, ...] | None:
        """Return the cached tools of an MCP server, or None."""
        now = asyncio.get_running_loop().time()
        for key in _keys(session):
            entry = self._cache.get(key)
            if entry is not None and now < entry.added_at + entry.value.max_age_s:
                return entry.value.tools
        return None

    def forget(self, session: SessionKey) -> None:
        """Drop the list of an MCP server, because the server contradicted it."""
        self._forgotten += 1
        for key in _keys(session):
            self._cache.remove(key)


def _keys(session: SessionKey) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the keys of a list that only this tenant may use, and of a list that all may use."""
    return (session.tenant, session.server.key), ("", session.server.key)


async def _fetch(client: Client, trace: dict[str, str]) -> _ToolList:
    """Return the tools that an MCP server offers, from all pages of its list, up to ``_MAX_TOOLS``
    tools. ``client``: the client that is connected to the server."""
    tools: list[ListedTool] = []
    max_age_ms, is_public = float("inf"), True
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor, meta=cast("RequestParamsMeta", trace))
        max_age_ms = min(max_age_ms, page.ttl_ms)
        is_public = is_public and page.cache_scope == "public"
        for tool in page.tools[: _MAX_TOOLS - len(tools)]:
            annotations = tool.annotations
            tools.append(
                ListedTool(
                    name=tool.name,
                    input_schema=tool.input_schema,
                    description=tool.description,
                    annotations=None
                    if annotations is None
                    else annotations.model_dump(by_alias=True, exclude_none=True, mode="json"),
                )
            )
        cursor = page.next_cursor
        if cursor is None or len(tools) >= _MAX_TOOLS:
            break
    return _ToolList(tuple(tools), min(max_age_ms / 1000, _MAX_AGE_S), is_public)
