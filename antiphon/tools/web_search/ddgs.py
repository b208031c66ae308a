"""Web search without an API key, with the package ``ddgs``, which queries several search engines.

The package blocks, so it runs in a small pool of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from antiphon.errors import SetupError, ToolError
from antiphon.fair_limiter import FairLimiter
from antiphon.installation import needs_extra

from .browser import SearchOptions
from .page import SearchResult

__all__ = ["Ddgs"]

_log = structlog.get_logger(__name__)

_MAX_THREADS = 4
#: Time limits in seconds: for one engine, and for all engines of a search.
_ENGINE_TIMEOUT_S, _TOTAL_TIMEOUT_S = 5, 15.0
#: The maximum number of domains in a query: engines truncate long queries.
_MAX_DOMAINS = 10
#: The package's message if the engines found nothing, and also if they refused the query.
_NO_RESULTS_MESSAGE = "No results found."

#: Country code → the package's name of a region.
_REGIONS: Mapping[str, str] = {
    "GB": "uk-en",
    **{
        name.partition("-")[0].upper(): name
        for name in (
            "ar-es at-de au-en be-nl bg-bg br-pt ca-en ch-de cl-es cn-zh co-es cz-cs de-de dk-da"
            " ee-et es-es fi-fi fr-fr gr-el hk-tzh hr-hr hu-hu id-id ie-en il-he in-en it-it jp-jp"
            " kr-kr lt-lt lv-lv mx-es my-ms nl-nl no-no nz-en pe-es ph-en pl-pl pt-pt ro-ro ru-ru"
            " se-sv sg-en sk-sk sl-sl th-th tr-tr tw-tzh ua-uk us-en vn-vi za-en"
        ).split()
    },
}
_DEFAULT_REGION = "us-en"


class Ddgs:
    """``SearchEngine`` over the package. Created by ``open``."""

    def __init__(self, client_factory: Any) -> None:
        #: Creates a client for one search. Clients are not thread-safe.
        self._client_factory = client_factory
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="search")
        self._slots = FairLimiter(_MAX_THREADS)

    @classmethod
    def open(cls) -> Ddgs:
        """Create the search engine. Raises ``SetupError`` if the extra is missing."""
        try:
            from ddgs import DDGS
        except ImportError:
            raise SetupError(
                needs_extra('The package of web_search = "ddgs" is not installed', "ddgs")
            ) from None
        return cls(DDGS)

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

        def search() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = self._client_factory(timeout=_ENGINE_TIMEOUT_S).text(
                _with_domains(query, options),
                region=_REGIONS.get(str(options.location.get("country")).upper(), _DEFAULT_REGION),
                max_results=options.count,
            )
            return rows

        try:
            async with asyncio.timeout(_TOTAL_TIMEOUT_S), self._slots.slot(options.tenant):
                loop = asyncio.get_running_loop()
                rows = await loop.run_in_executor(self._threads, search)
        except (TimeoutException, TimeoutError):
            raise ToolError("The search engines took too long. Try again later.") from None
        except RatelimitException:
            raise ToolError(
                "The search engines limit the rate of searches. Try again later."
            ) from None
        except DDGSException as error:
            if str(error) == _NO_RESULTS_MESSAGE:
                return ()
            _log.warning("a search failed", why=str(error)[:200])
            raise ToolError("The search engines cannot be reached. Try again later.") from None
        return tuple(filter(None, map(_parse_result, rows)))

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _with_domains(query: str, options: SearchOptions) -> str:
    """Return the query with the domain filters in the engines' syntax."""
    include_sites = " OR ".join(f"site:{name}" for name in options.allowed_domains[:_MAX_DOMAINS])
    exclude_sites = " ".join(f"-site:{name}" for name in options.blocked_domains[:_MAX_DOMAINS])
    return " ".join(
        filter(None, (query, f"({include_sites})" if include_sites else "", exclude_sites))
    )


def _parse_result(result: Mapping[str, Any]) -> SearchResult | None:
    url = str(result.get("href") or "")
    if not url.startswith(("http://", "https://")):
        return None
    return SearchResult(
        url=url, title=str(result.get("title") or ""), text=str(result.get("body") or "")
    )
