"""When the parts of a response were made: what is stored with it, and the answer of
``GET /antiphon/responses/{response_id}/timeline``.

All times are unix seconds with fractions; None if unknown.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .response import Response

__all__ = ["ItemTimes", "RunTimes", "Timeline", "TimelineItem", "timeline_of"]


class ItemTimes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When an item was made. ``written_at``: when the model had written the arguments of a call,
    so that a tool of the server started."""

    started_at: float | None = None
    written_at: float | None = None
    completed_at: float | None = None


class RunTimes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a response was accepted, when work on it started, when its items were made, in the
    order of its output, and when it ended."""

    created_at: float | None = None
    started_at: float | None = None
    items: tuple[ItemTimes, ...] = ()
    completed_at: float | None = None


class TimelineItem(ItemTimes, frozen=True, kw_only=True, omit_defaults=False):
    """An item of the output. Its first token came at ``started_at``."""

    id: str
    type: str


class Timeline(Struct, frozen=True, kw_only=True):
    """The times of a response. ``completed_at``: when it ended, whatever its status. The times of
    a response in progress are known when it has ended."""

    id: str
    object: Literal["antiphon.timeline"] = "antiphon.timeline"
    created_at: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    items: tuple[TimelineItem, ...] = ()


def timeline_of(response: Response, times: RunTimes | None) -> Timeline:
    """Return the timeline of a stored response. ``times``: None if they were not recorded."""
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
                type=str(type(item).__struct_config__.tag),
                started_at=each.started_at,
                written_at=each.written_at,
                completed_at=each.completed_at,
            )
            for item, each in zip(response.output, times.items, strict=False)
        ),
    )
