"""The times of a response: the times that are stored with it, and the answer of ``GET
/antiphon/responses/{response_id}/timeline``.

All times are Unix seconds with fractions. A time is None if it is unknown.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .response import Response

__all__ = ["ItemTimes", "RunTimes", "Timeline", "TimelineItem", "timeline_of"]


class ItemTimes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The times of one output item.

    ``written_at``: when the model had written all arguments of a call. From then on, a tool of the
    server could start.
    """

    started_at: float | None = None
    written_at: float | None = None
    completed_at: float | None = None


class RunTimes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The times of a response: when it was accepted, when work on it started, and when it ended.
    ``items``: the times of its output items, in the order of the output."""

    created_at: float | None = None
    started_at: float | None = None
    items: tuple[ItemTimes, ...] = ()
    completed_at: float | None = None


class TimelineItem(ItemTimes, frozen=True, kw_only=True, omit_defaults=False):
    """The times of an output item, with its id and type. ``started_at``: when the item was opened.
    For an item that the model writes, its first token arrived at this time."""

    id: str
    type: str


class Timeline(Struct, frozen=True, kw_only=True):
    """The times of a response.

    ``completed_at``: when the response ended, even if it failed or was cancelled. Until the
    response has ended, all times are None.
    """

    id: str
    object: Literal["antiphon.timeline"] = "antiphon.timeline"
    created_at: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    items: tuple[TimelineItem, ...] = ()


def timeline_of(response: Response, times: RunTimes | None) -> Timeline:
    """Return the timeline of a stored response. ``times`` is None if no times were recorded for
    this response."""
    if times is None:
        return Timeline(id=response.id)
    return Timeline(
        id=response.id,
        created_at=times.created_at,
        started_at=times.started_at,
        completed_at=times.completed_at,
        items=tuple(
            TimelineItem(
                id=item.id or "",
                type=item.type,
                started_at=each.started_at,
                written_at=each.written_at,
                completed_at=each.completed_at,
            )
            for item, each in zip(response.output, times.items, strict=False)
        ),
    )
