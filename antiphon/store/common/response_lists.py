"""Lists of responses by a condition that the database cannot check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from antiphon.store.records import ResponseQuery
from antiphon.wire.response_list import ResponseSummary

_Page = tuple[ResponseSummary, ...] | None

#: Number of summaries that are read at a time.
_READ = 500


async def list_matching(
    list_page: Callable[[str, ResponseQuery], Awaitable[_Page]],
    tenant: str,
    query: ResponseQuery,
    matching: Callable[[Sequence[ResponseSummary]], Awaitable[Sequence[ResponseSummary]]],
    at_a_time: int,
) -> _Page:
    """Return a page of the summaries that match ``query`` and meet a further condition.

    - ``list_page``: as ``Store.list_responses``. It is called until the page is full.
    - ``matching``: returns those of the given summaries that meet the condition.
    - ``at_a_time``: the smallest number of summaries that ``list_page`` is called for.
    """
    found: list[ResponseSummary] = []
    rest = replace(query, limit=max(query.limit, at_a_time))
    while True:
        page = await list_page(tenant, rest)
        if page is None:
            return None
        found += await matching(page)
        if len(page) < rest.limit or len(found) >= query.limit:
            return tuple(found[: query.limit])
        rest = replace(rest, after=page[-1].id)


async def search_summaries(
    list_page: Callable[[str, ResponseQuery], Awaitable[_Page]], tenant: str, query: ResponseQuery
) -> _Page:
    """Return a page of the summaries that contain ``query.text``, for a store whose database cannot
    read this text. All summaries that match the rest of the query are read until the page is
    full."""
    text = (query.text or "").casefold()

    async def containing(page: Sequence[ResponseSummary]) -> Sequence[ResponseSummary]:
        return [each for each in page if text in each.search_text]

    return await list_matching(list_page, tenant, replace(query, text=None), containing, _READ)
