"""Web search without an API key. The package ``ddgs`` queries several search engines.

The package parses untrusted pages, so each search runs in a separate process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from antiphon.errors import ToolError
from antiphon.ipc.worker_process import WorkerFailed, run_worker
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.installation import require_package

from .browser import SearchOptions
from .page import SearchResult

_log = structlog.get_logger(__name__)

#: The program that runs a search.
WORKER = Path(__file__).with_name("search_worker.py")
_MAX_SEARCHES = 4
#: Time limits in seconds: for one engine, and for all engines of a search.
_ENGINE_TIMEOUT_S, _TOTAL_TIMEOUT_S = 5, 15.0
#: The maximum number of domains in a query. It is limited because engines truncate long queries.
_MAX_DOMAINS = 10
#: Country code → the name that the package uses for the region.
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


_UNREACHABLE = "unreachable"
#: The worker's error → the message for the model.
_ERRORS = {
    "timeout": "The search engines took too long. Try again later.",
    "rate_limit": "The search engines limit the rate of searches. Try again later.",
    _UNREACHABLE: "The search engines cannot be reached. Try again later.",
}


class _WorkerOutput(msgspec.Struct, frozen=True):
    """The JSON that the worker process prints."""

    results: tuple[Mapping[str, Any], ...] = ()
    error: str = ""
    reason: str = ""


class Ddgs:
    """A ``SearchEngine`` that uses the package ``ddgs``. Create it with ``open``.

    ``run``: starts the worker process with a given input and returns its output.
    """

    def __init__(self, run: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._run = run
        self._slots = FairLimiter(_MAX_SEARCHES)

    @classmethod
    def open(cls, variables: Mapping[str, str]) -> Ddgs:
        """Create the search engine. ``variables``: environment variables of the processes that run
        the searches. Raises ``SetupError`` if the optional package ``ddgs`` is not installed."""
        require_package("ddgs", 'The package of web_search = "ddgs"', "ddgs")
        return cls(partial(_run_process, variables))

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        request = {
            "query": _with_domains(query, options),
            "region": _REGIONS.get(str(options.location.get("country")).upper(), _DEFAULT_REGION),
            "max_results": options.count,
            "timeout": _ENGINE_TIMEOUT_S,
        }
        try:
            async with asyncio.timeout(_TOTAL_TIMEOUT_S), self._slots.slot(options.tenant):
                output = await self._run(json.dumps(request).encode())
            found = msgspec.json.decode(output, type=_WorkerOutput)
        except TimeoutError:
            found = _WorkerOutput(error="timeout")
        except (OSError, WorkerFailed, msgspec.DecodeError) as error:
            found = _WorkerOutput(error=_UNREACHABLE, reason=str(error))
        if found.error:
            _log.warning("a search failed", error=found.error, reason=found.reason)
            raise ToolError(_ERRORS.get(found.error, _ERRORS[_UNREACHABLE]))
        return tuple(filter(None, map(_parse_result, found.results)))

    async def close(self) -> None:
        """Do nothing. No process has to be ended here, because the process of a cancelled search is
        killed immediately."""


async def _run_process(variables: Mapping[str, str], request: bytes) -> bytes:
    # Each arena of malloc reserves address space, which the worker limits.
    variables = {**variables, "MALLOC_ARENA_MAX": "2"}
    return await run_worker(WORKER, content=request, variables=variables)


def _with_domains(query: str, options: SearchOptions) -> str:
    """Return the query with the domain filters appended, in the search engines' syntax
    (``site:…``)."""
    include_sites = " OR ".join(f"site:{name}" for name in options.allowed_domains[:_MAX_DOMAINS])
    exclude_sites = " ".join(f"-site:{name}" for name in options.blocked_domains[:_MAX_DOMAINS])
    return " ".join(
        filter(None, (query, f"({include_sites})" if include_sites else "", exclude_sites))
    )


def _parse_result(result: Mapping[str, object]) -> SearchResult | None:
    url = str(result.get("href") or "")
    if not url.startswith(("http://", "https://")):
        return None
    return SearchResult(
        url=url, title=str(result.get("title") or ""), text=str(result.get("body") or "")
    )
