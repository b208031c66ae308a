"""Endpoints of ``/v1/organization/usage`` and ``/v1/organization/costs``: operators read the usage
of all tenants and what it costs.

Clients need an API key that is listed in the setting ``operators``. On a server without keys, only
clients on this machine may use these endpoints.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.requests import Request

from antiphon.errors import InvalidRequest
from antiphon.http.openapi.operation import Permission, operation
from antiphon.http.requests.query import read_query
from antiphon.runs.usage_counter import TOOL_KINDS, Prices, UsageKind, UsageQuery, UsageTotals
from antiphon.wire.admin.organization_usage import (
    AudioSpeechesUsage,
    AudioTranscriptionsUsage,
    CodeInterpreterUsage,
    CompletionsUsage,
    CostAmount,
    Costs,
    EmbeddingsUsage,
    FileSearchesUsage,
    UsageBucket,
    UsagePage,
    WebSearchesUsage,
)
from antiphon.wire.parsing.errors import out_of_range

if TYPE_CHECKING:
    from antiphon.runs.service import Service

_T = TypeVar("_T")
_Group: TypeAlias = Literal["tenant", "api_key", "model"]
_ALLOWED = Permission(("operator", "auditor"), "read the usage")


class _Width(Struct, frozen=True):
    """A width that clients can choose for the buckets. A bucket is a period whose usage is summed.
    ``default_limit`` and ``max_limit``: the default and the maximum number of buckets on a page."""

    seconds: int
    default_limit: int
    max_limit: int


#: OpenAI's widths and limits.
_WIDTHS: Mapping[str, _Width] = {
    "1m": _Width(60, 60, 1440),
    "1h": _Width(3600, 24, 168),
    "1d": _Width(86_400, 7, 31),
}
#: Name in the API → name in the store. The line items of costs are models and tools.
_GROUPS: Mapping[str, _Group] = {
    "project_id": "tenant",
    "api_key_id": "api_key",
    "model": "model",
    "line_item": "model",
}
#: The kinds of requests that use tokens. Besides them, calls of tools have a price.
_TOKEN_KINDS: tuple[UsageKind, ...] = ("completion", "embedding")
#: OpenAI's filters by what the usage log does not know.
_UNKNOWN_FILTERS = ("user_ids", "batch", "line_items", "vector_store_ids", "context_levels")
_FREE = Prices()
_MAX_TIME = 2**40
_PAGE = "page_"

_Time = Annotated[int, Meta(ge=0, le=_MAX_TIME)]


class _UsageRange(Struct, frozen=True, kw_only=True):
    start_time: Annotated[_Time, Meta(description="Begin in unix seconds.")]
    end_time: Annotated[_Time | None, Meta(description="End in unix seconds. Missing: now.")] = None
    project_ids: Annotated[tuple[str, ...] | None, Meta(description="Only these tenants.")] = None
    api_key_ids: Annotated[
        tuple[str, ...] | None, Meta(description="Only API keys with these names.")
    ] = None
    models: Annotated[tuple[str, ...] | None, Meta(description="Only these models.")] = None
    page: Annotated[str | None, Meta(description="`next_page` of the previous page.")] = None


class UsageListing(_UsageRange, frozen=True, kw_only=True):
    bucket_width: Annotated[
        Literal["1m", "1h", "1d"],
        Meta(
            description="Width of the buckets. They begin at full minutes, hours and days in UTC."
        ),
    ] = "1d"
    group_by: Annotated[
        tuple[Literal["project_id", "api_key_id", "model"], ...],
        Meta(description="Fields that group the sums. Projects are tenants."),
    ] = ()
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=1440)] | None,
        Meta(
            description="The maximum number of buckets: up to 1440 minutes (default 60), 168 hours"
            " (default 24) or 31 days (default 7)."
        ),
    ] = None


class CostListing(_UsageRange, frozen=True, kw_only=True):
    bucket_width: Annotated[Literal["1d"], Meta(description="Always a day in UTC.")] = "1d"
    group_by: Annotated[
        tuple[Literal["project_id", "api_key_id", "line_item"], ...],
        Meta(
            description="Fields that group the costs. Projects are tenants. Line items are models"
            " and tools."
        ),
    ] = ()
    limit: Annotated[int, Meta(ge=1, le=31), Meta(description="The maximum number of days.")] = 7


class _Listing(Struct, frozen=True):
    """A parsed request for one page of usage sums. A page covers several buckets (time intervals).
    ``query``: selects the usage in the time range of the requested page. ``end``: the Unix time at
    which the whole listing, with all its pages, ends."""

    query: UsageQuery
    end: int


class _Report(NamedTuple):
    """An endpoint below ``/v1/organization/usage``. ``kind``: the requests whose sums it returns,
    in the form of ``answer``."""

    path: str
    kind: UsageKind
    answer: type[Struct]
    summary: str

    def convert(self, totals: UsageTotals) -> Struct:
        """Return sums in the form of the answer."""
        names = self.answer.__struct_fields__
        return self.answer(
            **{name: getattr(totals, sum) for name, sum in _SUMS.items() if name in names}
        )


_REPORTS = (
    _Report(
        "completions",
        "completion",
        CompletionsUsage,
        "Return the usage of responses and completions, by time.",
    ),
    _Report("embeddings", "embedding", EmbeddingsUsage, "Return the usage of embeddings, by time."),
    _Report(
        "audio_transcriptions",
        "transcription",
        AudioTranscriptionsUsage,
        "Return how many seconds of recordings were written down, by time.",
    ),
    _Report(
        "audio_speeches",
        "speech",
        AudioSpeechesUsage,
        "Return how many characters were read aloud, by time.",
    ),
    _Report(
        "web_search_calls",
        "web_search",
        WebSearchesUsage,
        "Return how often responses have searched the web, by time.",
    ),
    _Report(
        "file_search_calls",
        "file_search",
        FileSearchesUsage,
        "Return how often responses have searched files, by time.",
    ),
    _Report(
        "code_interpreter_sessions",
        "code_interpreter",
        CodeInterpreterUsage,
        "Return how often responses have run code, by time.",
    ),
)
#: Field of an answer → the sum that it shows. ``seconds`` and ``characters`` are what models for
#: audio read.
_SUMS: Mapping[str, str] = {
    "seconds": "input_tokens",
    "characters": "input_tokens",
    "input_tokens": "input_tokens",
    "input_cached_tokens": "cached_tokens",
    "output_tokens": "output_tokens",
    "output_reasoning_tokens": "reasoning_tokens",
    "num_requests": "requests",
    "num_sessions": "requests",
    "num_model_requests": "requests",
    "num_failed_requests": "failed_requests",
    "num_cancelled_requests": "cancelled_requests",
    "num_tool_calls": "tool_calls",
    "latency_ms": "latency_ms",
    "project_id": "tenant",
    "api_key_id": "api_key",
    "model": "model",
}


def usage_handlers(service: Service) -> Iterator[object]:
    """Yield the handlers of ``/v1/organization``."""
    usage = _Usage(service)
    yield from map(usage.handler, _REPORTS)
    yield usage.costs


class _Usage:
    """Reads the usage log."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._counter = service.usage_counter

    def handler(self, report: _Report) -> Callable[[Request], Awaitable[UsagePage[Struct]]]:
        """Return the handler that returns the sums of one kind of requests."""

        @operation(
            f"GET /v1/organization/usage/{report.path}",
            f"usage-{report.path.replace('_', '-')}",
            summary=report.summary,
            query=UsageListing,
            answer=UsagePage[report.answer],  # type: ignore[name-defined]
            permission=_ALLOWED,
        )
        async def read(request: Request) -> UsagePage[Struct]:
            listing = self._listing(request, UsageListing, report.kind)
            found = _buckets(listing.query, await self._counter.totals(listing.query))
            return _page(
                listing, ((start, end, map(report.convert, sums)) for start, end, sums in found)
            )

        return read

    @operation("GET /v1/organization/costs", "usage-costs", query=CostListing, permission=_ALLOWED)
    async def costs(self, request: Request) -> UsagePage[Costs]:
        """Return the costs of each day. They are computed from the numbers of tokens and tool
        calls, and from the prices in the settings."""
        listing = self._listing(request, CostListing, "completion")
        groups = listing.query.group_by
        query = replace(listing.query, group_by=groups | {"model"})
        totals: list[UsageTotals] = []
        for kind in _TOKEN_KINDS:
            totals += await self._counter.totals(replace(query, kind=kind))
        for tool in TOOL_KINDS:
            calls = await self._counter.totals(replace(query, kind=tool))
            totals += (replace(each, model=tool) for each in calls)
        totals.sort(key=lambda each: each.start)
        found = _buckets(query, totals)
        return _page(
            listing, ((start, end, self._costs(sums, groups)) for start, end, sums in found)
        )

    def _costs(self, totals: Iterable[UsageTotals], groups: Collection[str]) -> Iterator[Costs]:
        """Yield the costs of one bucket: one sum for each combination of the groups."""
        prices = self._service.prices
        sums: dict[tuple[str | None, ...], list[float]] = {}
        for each in totals:
            price = prices.get(each.model or "", _FREE)
            item = each.model if "model" in groups else None
            values = sums.setdefault((each.tenant, each.api_key, item), [0, 0])
            values[0] += price.cost(each)
            tokens = each.input_tokens + each.output_tokens
            values[1] += each.requests if each.model in TOOL_KINDS else tokens / 1_000_000
        for (tenant, api_key, item), (cost, quantity) in sums.items():
            yield Costs(
                amount=CostAmount(value=cost),
                project_id=tenant,
                api_key_id=api_key,
                line_item=item,
                quantity=None if item is None else quantity,
            )

    def _listing(
        self, request: Request, cls: type[UsageListing | CostListing], kind: UsageKind
    ) -> _Listing:
        """Parse the query string. Raises ``InvalidRequest``."""
        query = read_query(request, cls, refused=_UNKNOWN_FILTERS)
        start, end = query.start_time, query.end_time
        if end is None:
            end = max(start, int(self._counter.clock())) + 1
        if end <= start:
            raise InvalidRequest("end_time must be after start_time.", param="end_time")
        width = _WIDTHS[query.bucket_width]
        limit = query.limit or width.default_limit
        if limit > width.max_limit:
            raise out_of_range("limit", "integer", limit, "<=", str(width.max_limit))
        first = _page_start(query.page, start - start % width.seconds, end, width)
        usage_query = UsageQuery(
            start=first,
            end=min(end, first + limit * width.seconds),
            width=width.seconds,
            kind=kind,
            group_by=frozenset(_GROUPS[name] for name in query.group_by),
            tenants=query.project_ids,
            api_keys=query.api_key_ids,
            models=query.models,
        )
        return _Listing(usage_query, end)


def _page_start(page: str | None, first: int, end: int, width: _Width) -> int:
    """Return the Unix time at which a page starts.

    ``page``: the cursor that the client sent; it contains the start time of the page. None means
    the first page. ``first``: the start of the first page. ``end``: the end of the last page.
    ``width``: the width of the buckets. Raises ``InvalidRequest`` if no page of this query starts
    at the time in the cursor.
    """
    if page is None:
        return first
    digits = page.removeprefix(_PAGE)
    start = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 14 else -1
    if not page.startswith(_PAGE) or not first <= start < end or start % width.seconds:
        raise InvalidRequest("The page does not belong to this query.", param="page")
    return start


def _page(listing: _Listing, buckets: Iterable[tuple[int, int, Iterable[_T]]]) -> UsagePage[_T]:
    """Return a page of buckets, with the cursor of the next page if there is one."""
    after = listing.query.end
    has_more = after < listing.end
    return UsagePage(
        data=tuple(
            UsageBucket(start_time=start, end_time=end, results=tuple(results))
            for start, end, results in buckets
        ),
        has_more=has_more,
        next_page=f"{_PAGE}{after}" if has_more else None,
    )


def _buckets(
    query: UsageQuery, totals: Iterable[UsageTotals]
) -> Iterable[tuple[int, int, tuple[UsageTotals, ...]]]:
    """Yield start, end and sums of every bucket (period) on the page, including buckets without
    usage."""
    found = {start: tuple(sums) for start, sums in groupby(totals, key=lambda each: each.start)}
    for start in range(query.start, query.end, query.width):
        yield start, start + query.width, found.get(start, ())
