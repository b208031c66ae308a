"""Pages of whatever has an id: newest or oldest first, after or before one of them. It knows
neither where a list is kept nor who asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from antiphon.errors import InvalidRequest
from antiphon.wire.pagination import Page

__all__ = ["Cut", "page", "page_of", "section"]


class _Named(Protocol):
    @property
    def id(self) -> str: ...


_T = TypeVar("_T", bound=_Named)


class Cut(Struct, frozen=True, kw_only=True):
    """Which page: at most ``limit`` items, ``desc`` is newest first; cursors are item ids."""

    limit: int = 20
    order: str = "desc"
    after: str | None = None
    before: str | None = None


def page(things: Iterable[_T], cut: Cut) -> Page[_T]:
    """One page of ``things``, which are given oldest first. Raises ``InvalidRequest`` for a cursor
    that is none of them."""
    return page_of(*section(things, cut))


def page_of(found: Sequence[_T], has_more: bool = False) -> Page[_T]:
    """What was found, as a page."""
    return Page(
        data=tuple(found),
        first_id=found[0].id if found else None,
        last_id=found[-1].id if found else None,
        has_more=has_more,
    )


def section(things: Iterable[_T], cut: Cut) -> tuple[tuple[_T, ...], bool]:
    """What stands on a page, and whether there are more. Raises likewise."""
    ordered = list({each.id: each for each in things}.values())
    if cut.order == "desc":
        ordered.reverse()
    start = _position(ordered, cut.after, "after") + 1 if cut.after is not None else 0
    stop = _position(ordered, cut.before, "before") if cut.before is not None else len(ordered)
    backwards = cut.before is not None and cut.after is None
    if backwards:
        start = max(0, stop - cut.limit)
    found = ordered[start:stop][: cut.limit]
    return tuple(found), start > 0 if backwards else start + len(found) < stop


def _position(things: Sequence[_Named], id: str, param: str) -> int:
    for position, each in enumerate(things):
        if each.id == id:
            return position
    raise InvalidRequest(f"Item with id '{id}' not found.", param=param)
