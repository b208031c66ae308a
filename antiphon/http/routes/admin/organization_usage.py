"""Endpoints of ``/v1/organization/usage`` and ``/v1/organization/costs``: operators read the usage
of all tenants and what it costs.

Clients need an API key that is listed in the setting ``operators``. On a server without keys, only
clients on this machine may use these endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.requests import Request

from antiphon.errors import InvalidRequest
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.middleware.auth import AuthConfig, check_role
from antiphon.http.openapi.operation import operation
from antiphon.http.requests.query import Query, QueryParam
from antiphon.runs.usage_counter import TokenPrices, UsageKind, UsageQuery, UsageTotals
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
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import missing_parameter

if TYPE_CHECKING:
    from antiphon.runs.service import Service

_T = TypeVar("_T")
_Group: TypeAlias = Literal["tenant", "api_key", "model"]


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
#: Name in the API → name in the store.
_GROUPS: Mapping[str, _Group] = {
    "project_id": "tenant",
    "api_key_id": "api_key",
    "model": "model",
}
#: The same for costs, whose line items are models.
_COST_GROUPS: Mapping[str, _Group] = {
    "project_id": "tenant",
    "api_key_id": "api_key",
    "line_item": "model",
}
#: The kinds of requests that use tokens, which are all that has a price.
_TOKEN_KINDS: tuple[UsageKind, ...] = ("completion", "embedding")
_FREE = TokenPrices()
_MAX_TIME = 2**40
_PAGE = "page_"

_Time = Annotated[int, Meta(ge=0, le=_MAX_TIME)]
_PARAMS = (
    QueryParam(name="start_time", type=_Time, description="Begin in unix seconds. Required."),
    QueryParam(name="end_time", type=_Time, description="End in unix seconds. Missing: now."),
    QueryParam(
        name="bucket_width",
        type=Literal["1m", "1h", "1d"],
        description="Width of the buckets. They begin at full minutes, hours and days in UTC.",
        default="1d",
    ),
    QueryParam(
        name="group_by",
        type=tuple[Literal["project_id", "api_key_id", "model"], ...],
        description="Fields that group the sums. Projects are tenants.",
    ),
    QueryParam(name="project_ids", type=tuple[str, ...], description="Only these tenants."),
    QueryParam(
        name="api_key_ids", type=tuple[str, ...], description="Only API keys with these names."
    ),
    QueryParam(name="models", type=tuple[str, ...], description="Only these models."),
    QueryParam(
        name="limit",
        type=Annotated[int, Meta(ge=1, le=1440)],
        description="The maximum number of buckets: up to 1440 minutes (default 60), 168 hours"
        " (default 24) or 31 days (default 7).",
    ),
    QueryParam(name="page", type=str, description="`next_page` of the previous page."),
)


_COST_PARAMS = (
    *(param for param in _PARAMS if param.name not in ("bucket_width", "group_by", "limit")),
    QueryParam(
        name="bucket_width", type=Literal["1d"], description="Always a day in UTC.", default="1d"
    ),
    QueryParam(
        name="group_by",
        type=tuple[Literal["project_id", "api_key_id", "line_item"], ...],
        description="Fields that group the costs. Projects are tenants, line items are models.",
    ),
    QueryParam(
        name="limit",
        type=Annotated[int, Meta(ge=1, le=31)],
        description="The maximum number of days.",
        default=7,
    ),
)


class _Listing(Struct, frozen=True):
    """A parsed request for one page of usage sums. A page covers several buckets (time intervals).
    ``query``: selects the usage in the time range of the requested page. ``end``: the Unix time at
    which the whole listing, with all its pages, ends."""

    query: UsageQuery
    end: int


class OrganizationUsageRoutes:
    """All routes below ``/v1/organization/usage``."""

    def __init__(self, service: Service, access: AuthConfig) -> None:
        self._service = service
        self._access = access

    @operation(
        "usage-completions", query=_PARAMS, answer=UsagePage[CompletionsUsage], errors=(403,)
    )
    async def completions(self, request: Request) -> Reply:
        """Return the usage of responses and completions, by time."""
        return await self._page(request, "completion", _completions_usage)

    @operation("usage-embeddings", query=_PARAMS, answer=UsagePage[EmbeddingsUsage], errors=(403,))
    async def embeddings(self, request: Request) -> Reply:
        """Return the usage of embeddings, by time."""
        return await self._page(request, "embedding", _embeddings_usage)

    @operation(
        "usage-audio-transcriptions",
        query=_PARAMS,
        answer=UsagePage[AudioTranscriptionsUsage],
        errors=(403,),
    )
    async def transcriptions(self, request: Request) -> Reply:
        """Return how many seconds of recordings were written down, by time."""
        return await self._page(request, "transcription", _transcriptions_usage)

    @operation(
        "usage-audio-speeches", query=_PARAMS, answer=UsagePage[AudioSpeechesUsage], errors=(403,)
    )
    async def speeches(self, request: Request) -> Reply:
        """Return how many characters were read aloud, by time."""
        return await self._page(request, "speech", _speeches_usage)

    @operation(
        "usage-web-search-calls", query=_PARAMS, answer=UsagePage[WebSearchesUsage], errors=(403,)
    )
    async def web_searches(self, request: Request) -> Reply:
        """Return how often responses have searched the web, by time."""
        return await self._page(request, "web_search", _web_searches_usage)

    @operation(
        "usage-file-search-calls", query=_PARAMS, answer=UsagePage[FileSearchesUsage], errors=(403,)
    )
    async def file_searches(self, request: Request) -> Reply:
        """Return how often responses have searched files, by time."""
        return await self._page(request, "file_search", _file_searches_usage)

    @operation(
        "usage-code-interpreter-sessions",
        query=_PARAMS,
        answer=UsagePage[CodeInterpreterUsage],
        errors=(403,),
    )
    async def code_interpreter(self, request: Request) -> Reply:
        """Return how often responses have run code, by time."""
        return await self._page(request, "code_interpreter", _code_interpreter_usage)

    async def _page(
        self, request: Request, kind: UsageKind, convert: Callable[[UsageTotals], _T]
    ) -> Reply:
        """Answer with the sums of one kind of requests, converted to the form of the API."""
        listing = self._listing(request, kind)
        totals = await self._service.usage_counter.totals(listing.query)
        buckets = (
            UsageBucket(start_time=start, end_time=end, results=tuple(map(convert, found)))
            for start, end, found in _buckets(listing.query, totals)
        )
        return json_reply(UsagePage(data=tuple(buckets), **_more(listing)))

    @operation("usage-costs", query=_COST_PARAMS, answer=UsagePage[Costs], errors=(403,))
    async def costs(self, request: Request) -> Reply:
        """Return what the tokens of each day cost, by the prices in the settings."""
        listing = self._listing(request, "completion", _COST_GROUPS)
        groups = listing.query.group_by
        query = replace(listing.query, group_by=groups | {"model"})
        totals: list[UsageTotals] = []
        for kind in _TOKEN_KINDS:
            totals += await self._service.usage_counter.totals(replace(query, kind=kind))
        totals.sort(key=lambda each: each.start)
        buckets = (
            UsageBucket(start_time=start, end_time=end, results=tuple(self._costs(found, groups)))
            for start, end, found in _buckets(query, totals)
        )
        return json_reply(UsagePage(data=tuple(buckets), **_more(listing)))

    def _costs(self, totals: Iterable[UsageTotals], groups: Collection[str]) -> Iterator[Costs]:
        """Yield the costs of one bucket: one sum for each combination of the groups."""
        prices = self._service.prices
        sums: dict[tuple[str | None, ...], list[float]] = {}
        for each in totals:
            price = prices.get(each.model or "", _FREE)
            item = each.model if "model" in groups else None
            values = sums.setdefault((each.tenant, each.api_key, item), [0, 0])
            values[0] += price.cost(each)
            values[1] += (each.input_tokens + each.output_tokens) / 1_000_000
        for (tenant, api_key, item), (cost, quantity) in sums.items():
            yield Costs(
                amount=CostAmount(value=cost),
                project_id=tenant,
                api_key_id=api_key,
                line_item=item,
                quantity=None if item is None else quantity,
            )

    def _listing(
        self, request: Request, kind: UsageKind, names: Mapping[str, _Group] = _GROUPS
    ) -> _Listing:
        """Check the client's role and parse the query string. ``names``: the values of
        ``group_by``. Raises ``Forbidden`` and ``InvalidRequest``."""
        check_role(request.scope, self._access, "operator", "auditor", action="read the usage")
        query = Query(request.scope)
        query.refuse("user_ids", "batch")
        start = query.number("start_time", low=0, high=_MAX_TIME)
        if start is None:
            raise missing_parameter("start_time")
        end = query.number("end_time", low=0, high=_MAX_TIME)
        if end is None:
            end = max(start, int(self._service.usage_counter.clock())) + 1
        if end <= start:
            raise InvalidRequest("end_time must be after start_time.", param="end_time")
        widths = ("1d",) if names is _COST_GROUPS else tuple(_WIDTHS)
        width = _WIDTHS[query.choice("bucket_width", widths, "1d")]
        limit = query.number("limit", low=1, high=width.max_limit) or width.default_limit
        first = _page_start(query.value("page"), start - start % width.seconds, end, width)
        groups = query.choices("group_by", tuple(names))
        usage_query = UsageQuery(
            start=first,
            end=min(end, first + limit * width.seconds),
            width=width.seconds,
            kind=kind,
            group_by=frozenset(names[name] for name in groups),
            tenants=query.values("project_ids"),
            api_keys=query.values("api_key_ids"),
            models=query.values("models"),
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


def _more(listing: _Listing) -> JsonObject:
    """Return the response fields about the next page: ``has_more``, and, if there is a next page,
    its cursor ``next_page``."""
    after = listing.query.end
    if after >= listing.end:
        return {"has_more": False}
    return {"has_more": True, "next_page": f"{_PAGE}{after}"}


def _buckets(
    query: UsageQuery, totals: Iterable[UsageTotals]
) -> Iterable[tuple[int, int, tuple[UsageTotals, ...]]]:
    """Yield start, end and sums of every bucket (period) on the page, including buckets without
    usage."""
    found = {start: tuple(sums) for start, sums in groupby(totals, key=lambda each: each.start)}
    for start in range(query.start, query.end, query.width):
        yield start, start + query.width, found.get(start, ())


def _completions_usage(totals: UsageTotals) -> CompletionsUsage:
    return CompletionsUsage(
        input_tokens=totals.input_tokens,
        input_cached_tokens=totals.cached_tokens,
        output_tokens=totals.output_tokens,
        num_model_requests=totals.requests,
        num_failed_requests=totals.failed_requests,
        num_cancelled_requests=totals.cancelled_requests,
        num_tool_calls=totals.tool_calls,
        output_reasoning_tokens=totals.reasoning_tokens,
        latency_ms=totals.latency_ms,
        **_groups(totals),
    )


def _embeddings_usage(totals: UsageTotals) -> EmbeddingsUsage:
    return EmbeddingsUsage(
        input_tokens=totals.input_tokens,
        num_model_requests=totals.requests,
        latency_ms=totals.latency_ms,
        **_groups(totals),
    )


def _groups(totals: UsageTotals) -> JsonObject:
    """Return the fields that the sums are grouped by."""
    return {"project_id": totals.tenant, "api_key_id": totals.api_key, "model": totals.model}


def _transcriptions_usage(totals: UsageTotals) -> AudioTranscriptionsUsage:
    return AudioTranscriptionsUsage(
        seconds=totals.input_tokens, num_model_requests=totals.requests, **_groups(totals)
    )


def _speeches_usage(totals: UsageTotals) -> AudioSpeechesUsage:
    return AudioSpeechesUsage(
        characters=totals.input_tokens, num_model_requests=totals.requests, **_groups(totals)
    )


def _web_searches_usage(totals: UsageTotals) -> WebSearchesUsage:
    return WebSearchesUsage(
        num_requests=totals.requests, num_model_requests=totals.requests, **_groups(totals)
    )


def _file_searches_usage(totals: UsageTotals) -> FileSearchesUsage:
    return FileSearchesUsage(
        num_requests=totals.requests, project_id=totals.tenant, api_key_id=totals.api_key
    )


def _code_interpreter_usage(totals: UsageTotals) -> CodeInterpreterUsage:
    return CodeInterpreterUsage(
        num_sessions=totals.requests, project_id=totals.tenant, api_key_id=totals.api_key
    )
