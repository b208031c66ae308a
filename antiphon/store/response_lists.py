"""The search for responses by their text, in a database that cannot read this text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from antiphon.store.records import ResponseQuery
from antiphon.wire.response_list import ResponseSummary

_Page = tuple[ResponseSummary, ...] | None

#: Number of summaries that are read at a time.
_READ = 500


async def search_summaries(
    list_page: Callable[[str, ResponseQuery], Awaitable[_Page]], tenant: str, query: ResponseQuery
) -> _Page:
    """Return the page of summaries that ``query`` asks for. ``list_page``: as
    ``Store.list_responses``, for queries without a text. The text is compared here, so a search
    reads all summaries that match the rest of the query until the page is full."""
    text = (query.text or "").casefold()
    found: list[ResponseSummary] = []
    rest = replace(query, text=None, limit=max(query.limit, _READ))
    while True:
        page = await list_page(tenant, rest)
        if page is None:
            return None
        found += [each for each in page if text in each.search_text]
        if len(page) < rest.limit or len(found) >= query.limit:
            return tuple(found[: query.limit])
        rest = replace(rest, after=page[-1].id)
