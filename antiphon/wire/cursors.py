"""Pagination of lists: order, and cursors after or before an item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Generic, Literal, Protocol, TypeVar

from msgspec import Meta, Struct

from antiphon.errors import InvalidRequest
from antiphon.wire.pagination import Page

__all__ = [
    "PageParams",
    "PagedList",
    "make_page",
    "page_of",
    "page_of_found",
    "page_query",
    "select_page",
    "unknown_cursor",
]


class _Named(Protocol):
    @property
    def id(self) -> str: ...


_T = TypeVar("_T", bound=_Named)
_Q = TypeVar("_Q")


#: The types of the parameters of a page. A ``limit`` of the request is at most 100.
PageLimit = Annotated[int, Meta(ge=1, le=100), Meta(description="The largest number of entries.")]
PageOrder = Annotated[Literal["asc", "desc"], Meta(description="`desc`: the newest entries first.")]
PageStart = Annotated[str | None, Meta(description="The id after which the page starts.")]
PageEnd = Annotated[str | None, Meta(description="The id before which the page ends.")]


class PageParams(Struct, frozen=True, kw_only=True):
    """The parameters with which a request selects a page of a list."""

    limit: PageLimit = 20
    order: PageOrder = "desc"
    after: PageStart = None
    before: PageEnd = None

    @property
    def is_backwards(self) -> bool:
        """Whether the page ends directly before the item ``before``. Any other page starts directly
        after the item ``after`` or at the start of the list. True if ``before`` is set and
        ``after`` is not set."""
        return self.before is not None and self.after is None


class PagedList(Generic[_T]):
    """A list that is read in pages. The time to read a page depends on the size of the page, not on
    the length of the list.

    ``items``: the items, oldest first. If several items have the same id, only the last item is
    kept.
    """

    def __init__(self, items: Iterable[_T]) -> None:
        unique = {each.id: each for each in items}
        self._items = tuple(unique.values())
        self._positions = {id: position for position, id in enumerate(unique)}

    def __len__(self) -> int:
        return len(self._items)

    def page(self, params: PageParams) -> Page[_T]:
        """Return the page that ``params`` describe. Raises ``InvalidRequest`` for a cursor that is
        not in the list."""
        return page_of(*self.select(params))

    def select(self, params: PageParams) -> tuple[tuple[_T, ...], bool]:
        """Return the items of a page, and whether the list has more items after the page. For a
        backwards page (``PageParams.is_backwards``), return whether the list has more items before
        the page instead. Raises ``InvalidRequest`` if ``after`` or ``before`` is not the id of an
        item in the list."""
        newest_first = params.order == "desc"
        start, stop = 0, len(self._items)
        if params.after is not None:
            start = self._position(params.after, "after", newest_first) + 1
        if params.before is not None:
            stop = self._position(params.before, "before", newest_first)
        if params.is_backwards:
            start = max(0, stop - params.limit)
        end = max(start, min(stop, start + params.limit))
        more = start > 0 if params.is_backwards else end < stop
        if newest_first:
            count = len(self._items)
            return self._items[count - end : count - start][::-1], more
        return self._items[start:end], more

    def _position(self, id: str, param: str, newest_first: bool) -> int:
        position = self._positions.get(id)
        if position is None:
            raise unknown_cursor(param, id)
        return len(self._items) - 1 - position if newest_first else position


def make_page(items: Iterable[_T], params: PageParams) -> Page[_T]:
    """Return one page of ``items``. See ``PagedList.page``."""
    return PagedList(items).page(params)


def page_of(selected: Sequence[_T], has_more: bool = False) -> Page[_T]:
    """Return a page with these items. ``has_more``: whether there are more items."""
    return Page(
        data=tuple(selected),
        first_id=selected[0].id if selected else None,
        last_id=selected[-1].id if selected else None,
        has_more=has_more,
    )


def select_page(items: Iterable[_T], params: PageParams) -> tuple[tuple[_T, ...], bool]:
    """Return the items of a page, and whether there are more items. See ``PagedList.select``."""
    return PagedList(items).select(params)


def page_query(make: Callable[..., _Q], params: PageParams, **more: object) -> _Q:
    """Return the query with which a store reads a page. The query asks for one entry more than the
    page has: if the store returns this entry, there are more pages. A backwards page
    (``PageParams.is_backwards``) is read in reverse order.

    ``make``: the class of the query. ``more``: the other fields of the query.
    """
    return make(
        limit=params.limit + 1,
        newest_first=(params.order == "desc") != params.is_backwards,
        after=params.before if params.is_backwards else params.after,
        until=None if params.is_backwards else params.before,
        **more,
    )


def page_of_found(found: Sequence[_T], params: PageParams) -> Page[_T]:
    """Build a page from the entries that a store returned for a query made by ``page_query``.
    ``params``: the parameters that were passed to ``page_query``."""
    page = found[: params.limit]
    return page_of(page[::-1] if params.is_backwards else page, len(found) > params.limit)


def unknown_cursor(param: str, id: str) -> InvalidRequest:
    """Return the error for a cursor that is not the id of an item. ``param``: ``after`` or
    ``before``."""
    return InvalidRequest(f"Item with id '{id}' not found.", param=param)
