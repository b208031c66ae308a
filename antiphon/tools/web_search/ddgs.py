"""Searches without a key, by ``ddgs``: a package that asks the pages of several search engines and
puts their results together. It works in threads, which are few and bounded here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from antiphon.errors import SetupError, ToolError

from .browser import SearchOptions
from .page import SearchResult

__all__ = ["Ddgs"]

_log = structlog.get_logger(__name__)

_MAX_THREADS = 4
#: For one engine, and for all that are asked for one search.
_ENGINE_TIMEOUT_S, _TOTAL_TIMEOUT_S = 5, 15.0
#: Domains that are written into a query: engines cut long ones.
_MAX_DOMAINS = 10
#: What the package says when the engines had nothing, and also when they refused.
_NO_RESULTS_MESSAGE = "No results found."

#: The package's names of regions, by their countries.
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
    """``Finder`` over the package. Made by ``open``."""

    def __init__(self, client_factory: Any) -> None:
        #: Makes what searches once: it is not to be shared between threads.
        self._client_factory = client_factory
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="search")

    @classmethod
    def open(cls) -> Ddgs:
        """Raises ``SetupError``: a missing extra."""
        try:
            from ddgs import DDGS
        except ImportError:
            raise SetupError(
                'web_search = "ddgs" needs an extra: pip install "antiphon[ddgs]".'
            ) from None
        return cls(DDGS)

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

        def search() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = self._client_factory(timeout=_ENGINE_TIMEOUT_S).text(
                _with_domains(query, options),
                region=_REGIONS.get(str(options.location.get("country")).upper(), _DEFAULT_REGION),
                max_results=options.count,
            )
            return found

        try:
            async with asyncio.timeout(_TOTAL_TIMEOUT_S):
                loop = asyncio.get_running_loop()
                found = await loop.run_in_executor(self._threads, search)
        except (TimeoutException, TimeoutError):
            raise ToolError("The search engines took too long. Try again later.") from None
        except RatelimitException:
            raise ToolError("The search engines want no more searches for now.") from None
        except DDGSException as error:
            if str(error) == _NO_RESULTS_MESSAGE:
                return ()
            _log.warning("a search failed", why=str(error)[:200])
            raise ToolError("The search engines cannot be reached. Try again later.") from None
        return tuple(filter(None, map(_parse_result, found)))

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _with_domains(query: str, options: SearchOptions) -> str:
    """The query with the domains that are meant, as engines understand it."""
    wanted = " OR ".join(f"site:{name}" for name in options.allowed_domains[:_MAX_DOMAINS])
    unwanted = " ".join(f"-site:{name}" for name in options.blocked_domains[:_MAX_DOMAINS])
    return " ".join(filter(None, (query, f"({wanted})" if wanted else "", unwanted)))


def _parse_result(result: Mapping[str, Any]) -> SearchResult | None:
    url = str(result.get("href") or "")
    if not url.startswith(("http://", "https://")):
        return None
    return SearchResult(
        url=url, title=str(result.get("title") or ""), text=str(result.get("body") or "")
    )
