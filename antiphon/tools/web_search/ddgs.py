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

from .browser import Asked
from .page import Found

__all__ = ["Ddgs"]

_log = structlog.get_logger(__name__)

_AT_ONCE = 4
#: For one engine, and for all that are asked for one search.
_ENGINE_SECONDS, _SECONDS = 5, 15.0
#: Domains that are written into a query: engines cut long ones.
_MOST_DOMAINS = 10
#: What the package says when the engines had nothing, and also when they refused.
_NOTHING = "No results found."

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
_ANYWHERE = "us-en"


class Ddgs:
    """``Finder`` over the package. Made by ``open``."""

    def __init__(self, make: Any) -> None:
        #: Makes what searches once: it is not to be shared between threads.
        self._make = make
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="search")

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

    async def find(self, query: str, asked: Asked) -> tuple[Found, ...]:
        from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

        def search() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = self._make(timeout=_ENGINE_SECONDS).text(
                _within(query, asked),
                region=_REGIONS.get(str(asked.location.get("country")).upper(), _ANYWHERE),
                max_results=asked.count,
            )
            return found

        try:
            async with asyncio.timeout(_SECONDS):
                loop = asyncio.get_running_loop()
                found = await loop.run_in_executor(self._threads, search)
        except (TimeoutException, TimeoutError):
            raise ToolError("The search engines took too long. Try again later.") from None
        except RatelimitException:
            raise ToolError("The search engines want no more searches for now.") from None
        except DDGSException as error:
            if str(error) == _NOTHING:
                return ()
            _log.warning("a search failed", why=str(error)[:200])
            raise ToolError("The search engines cannot be reached. Try again later.") from None
        return tuple(filter(None, map(_found, found)))

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _within(query: str, asked: Asked) -> str:
    """The query with the domains that are meant, as engines understand it."""
    wanted = " OR ".join(f"site:{name}" for name in asked.allowed[:_MOST_DOMAINS])
    unwanted = " ".join(f"-site:{name}" for name in asked.blocked[:_MOST_DOMAINS])
    return " ".join(filter(None, (query, f"({wanted})" if wanted else "", unwanted)))


def _found(one: Mapping[str, Any]) -> Found | None:
    url = str(one.get("href") or "")
    if not url.startswith(("http://", "https://")):
        return None
    return Found(url=url, title=str(one.get("title") or ""), text=str(one.get("body") or ""))
