"""Search engines by their HTTP interfaces, a row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from msgspec import Struct

from antiphon.errors import SetupError, ToolError

from .browser import SearchOptions
from .page import SearchResult

__all__ = ["ENGINES", "EngineSpec", "HttpSearchEngine"]

_log = structlog.get_logger(__name__)

Json = dict[str, Any]
_TIMEOUT_S = 15.0


class EngineSpec(Struct, frozen=True, kw_only=True):
    """``url``: where it answers; None: the operator says. ``key``: the header for the key, and how
    it is written there. ``query`` or ``body``: what is asked. ``read``: the results."""

    url: str | None
    path: str
    list_results: Callable[[Json], Sequence[Any]]
    parse_result: Callable[[Json], SearchResult]
    key: tuple[str, str] | None = None
    query: Callable[[str, SearchOptions], Json] | None = None
    body: Callable[[str, SearchOptions], Json] | None = None


def _domain_fields(allowed: str, blocked: str) -> Callable[[SearchOptions], Json]:
    def fields(asked: SearchOptions) -> Json:
        given = {allowed: list(asked.allowed_domains), blocked: list(asked.blocked_domains)}
        return {name: value for name, value in given.items() if value}

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
        body=lambda query, asked: {
            "query": query,
            "numResults": asked.count,
            "contents": {"text": {"maxCharacters": 500}},
            **_exa(asked),
        },
        list_results=lambda answer: answer["results"],
        parse_result=lambda one: SearchResult(
            url=one["url"], title=one.get("title") or "", text=one.get("text") or ""
        ),
    ),
    "tavily": EngineSpec(
        url="https://api.tavily.com",
        path="/search",
        key=("authorization", "Bearer {}"),
        body=lambda query, asked: {"query": query, "max_results": asked.count, **_tavily(asked)},
        list_results=lambda answer: answer["results"],
        parse_result=lambda one: SearchResult(
            url=one["url"], title=one.get("title") or "", text=one.get("content") or ""
        ),
    ),
    "brave": EngineSpec(
        url="https://api.search.brave.com",
        path="/res/v1/web/search",
        key=("x-subscription-token", "{}"),
        query=lambda query, asked: {
            "q": query,
            "count": min(asked.count, 20),
            **({"country": asked.location["country"]} if asked.location.get("country") else {}),
        },
        list_results=lambda answer: answer.get("web", {}).get("results", []),
        parse_result=lambda one: SearchResult(
            url=one["url"], title=one.get("title") or "", text=one.get("description") or ""
        ),
    ),
    "you": EngineSpec(
        url="https://ydc-index.io",
        path="/v1/search",
        key=("x-api-key", "{}"),
        query=lambda query, asked: {"query": query, "count": asked.count},
        list_results=lambda answer: answer.get("results", {}).get("web", []),
        parse_result=lambda one: SearchResult(
            url=one["url"],
            title=one.get("title") or "",
            text=" ".join(one.get("snippets") or ()) or one.get("description") or "",
        ),
    ),
    "searxng": EngineSpec(
        url=None,
        path="/search",
        query=lambda query, asked: {"q": query, "format": "json"},
        list_results=lambda answer: answer["results"],
        parse_result=lambda one: SearchResult(
            url=one["url"], title=one.get("title") or "", text=one.get("content") or ""
        ),
    ),
}


class HttpSearchEngine:
    """``Finder`` over a search engine's interface. Made by ``open``, inside an event loop."""

    def __init__(self, spec: EngineSpec, base: str, session: Any) -> None:
        self._spec = spec
        self._base = base
        self._session = session

    @classmethod
    def open(
        cls, engine: str, *, key: str | None = None, url: str | None = None
    ) -> HttpSearchEngine:
        """``engine``: a name of ``ENGINES``. Raises ``SetupError``: a missing extra, key or URL."""
        row = ENGINES[engine]
        base = url or row.url
        if base is None:
            raise SetupError(f"web_search = {engine!r} needs web_search_url: where it answers")
        if row.key is not None and not key:
            raise SetupError(f"web_search = {engine!r} needs web_search_key")
        try:
            import aiohttp
        except ImportError:
            raise SetupError(
                'Searching the web needs an extra: pip install "antiphon[web]".'
            ) from None
        headers = {"user-agent": "antiphon"}
        if row.key is not None:
            name, form = row.key
            headers[name] = form.format(key)
        session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return cls(row, base.rstrip("/"), session)

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        import aiohttp

        row = self._spec
        given: Json = {"params": row.query(query, options)} if row.query else {}
        if row.body is not None:
            given["json"] = row.body(query, options)
        method = "POST" if row.body is not None else "GET"
        try:
            async with self._session.request(
                method, self._base + row.path, allow_redirects=False, **given
            ) as answer:
                if answer.status != 200:
                    _log.warning("a search failed", status=answer.status)
                    raise ToolError("The search engine did not answer. Try again later.")
                results = row.list_results(await answer.json(content_type=None))
            return tuple(row.parse_result(one) for one in results if isinstance(one, dict))
        except (aiohttp.ClientError, OSError, TimeoutError):
            raise ToolError("The search engine cannot be reached. Try again later.") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ToolError("The search engine's answer could not be read.") from None

    async def close(self) -> None:
        await self._session.close()
