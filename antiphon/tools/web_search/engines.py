"""Search engines with an HTTP API. Each engine is one entry of ``ENGINES``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from msgspec import Struct

from antiphon.errors import SetupError, ToolError
from antiphon.support.installation import needs_packages
from antiphon.wire.json_types import JsonObject

from .browser import SearchOptions
from .page import SearchResult

_log = structlog.get_logger(__name__)

_TIMEOUT_S = 15.0


class EngineSpec(Struct, frozen=True, kw_only=True):
    """Describes the HTTP API of a search engine.

    - ``url``: the base URL of the engine. It is None if the operator has to configure it.
    - ``key``: name of the header for the API key, and the format of the header's value.
    - ``query``: builds the query parameters.
    - ``body``: builds the JSON body. An engine has either ``query`` or ``body``.
    - ``list_results``: returns the list of results in a response.
    - ``parse_result``: parses one result.
    """

    url: str | None
    path: str
    list_results: Callable[[JsonObject], Sequence[Any]]
    parse_result: Callable[[JsonObject], SearchResult]
    key: tuple[str, str] | None = None
    query: Callable[[str, SearchOptions], JsonObject] | None = None
    body: Callable[[str, SearchOptions], JsonObject] | None = None


def _domain_fields(allowed: str, blocked: str) -> Callable[[SearchOptions], JsonObject]:
    def fields(options: SearchOptions) -> JsonObject:
        values = {allowed: list(options.allowed_domains), blocked: list(options.blocked_domains)}
        return {name: value for name, value in values.items() if value}

    return fields


_exa, _tavily = (
    _domain_fields("includeDomains", "excludeDomains"),
    _domain_fields("include_domains", "exclude_domains"),
)

ENGINES: Mapping[str, EngineSpec] = {
    "exa": EngineSpec(
        url="https://api.exa.ai",
        path="/search",
        key=("x-api-key", "{}"),
        body=lambda query, options: {
            "query": query,
            "numResults": options.count,
            "contents": {"text": {"maxCharacters": 500}},
            **_exa(options),
        },
        list_results=lambda response: response["results"],
        parse_result=lambda result: SearchResult(
            url=result["url"], title=result.get("title") or "", text=result.get("text") or ""
        ),
    ),
    "tavily": EngineSpec(
        url="https://api.tavily.com",
        path="/search",
        key=("authorization", "Bearer {}"),
        body=lambda query, options: {
            "query": query,
            "max_results": options.count,
            **_tavily(options),
        },
        list_results=lambda response: response["results"],
        parse_result=lambda result: SearchResult(
            url=result["url"], title=result.get("title") or "", text=result.get("content") or ""
        ),
    ),
    "brave": EngineSpec(
        url="https://api.search.brave.com",
        path="/res/v1/web/search",
        key=("x-subscription-token", "{}"),
        query=lambda query, options: {
            "q": query,
            "count": min(options.count, 20),
            **({"country": options.location["country"]} if options.location.get("country") else {}),
        },
        list_results=lambda response: response.get("web", {}).get("results", []),
        parse_result=lambda result: SearchResult(
            url=result["url"], title=result.get("title") or "", text=result.get("description") or ""
        ),
    ),
    "you": EngineSpec(
        url="https://ydc-index.io",
        path="/v1/search",
        key=("x-api-key", "{}"),
        query=lambda query, options: {"query": query, "count": options.count},
        list_results=lambda response: response.get("results", {}).get("web", []),
        parse_result=lambda result: SearchResult(
            url=result["url"],
            title=result.get("title") or "",
            text=" ".join(result.get("snippets") or ()) or result.get("description") or "",
        ),
    ),
    "searxng": EngineSpec(
        url=None,
        path="/search",
        query=lambda query, options: {"q": query, "format": "json"},
        list_results=lambda response: response["results"],
        parse_result=lambda result: SearchResult(
            url=result["url"], title=result.get("title") or "", text=result.get("content") or ""
        ),
    ),
}


class HttpSearchEngine:
    """A ``SearchEngine`` with an HTTP API. Create it with ``open``, inside an event loop."""

    def __init__(self, spec: EngineSpec, base: str, session: Any) -> None:
        self._spec = spec
        self._base = base
        self._session = session

    @classmethod
    def open(
        cls, engine: str, *, key: str | None = None, url: str | None = None
    ) -> HttpSearchEngine:
        """Create the search engine. ``engine``: a name in ``ENGINES``.

        Raises ``SetupError`` if the HTTP client is not installed, or the key or the URL is missing.
        """
        spec = ENGINES[engine]
        base = url or spec.url
        if base is None:
            raise SetupError(f"web_search.engine = {engine!r} needs web_search.url")
        if spec.key is not None and not key:
            raise SetupError(f"web_search.engine = {engine!r} needs web_search.key")
        with needs_packages("The HTTP client of web search is not installed", "web"):
            import aiohttp
        headers = {"user-agent": "antiphon"}
        if spec.key is not None:
            name, template = spec.key
            headers[name] = template.format(key)
        session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return cls(spec, base.rstrip("/"), session)

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        import aiohttp

        spec = self._spec
        values: JsonObject = {"params": spec.query(query, options)} if spec.query else {}
        if spec.body is not None:
            values["json"] = spec.body(query, options)
        method = "POST" if spec.body is not None else "GET"
        try:
            async with self._session.request(
                method, self._base + spec.path, allow_redirects=False, **values
            ) as response:
                if response.status != 200:
                    _log.warning("a search failed", status=response.status)
                    raise ToolError("The search engine did not answer. Try again later.")
                results = spec.list_results(await response.json(content_type=None))
            return tuple(
                spec.parse_result(result) for result in results if isinstance(result, dict)
            )
        except (aiohttp.ClientError, OSError, TimeoutError):
            raise ToolError("The search engine cannot be reached. Try again later.") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ToolError("The search engine's answer could not be read.") from None

    async def close(self) -> None:
        await self._session.close()
