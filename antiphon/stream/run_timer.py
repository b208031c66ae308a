"""Records when a run and its items start and end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from antiphon.wire import events as ev
from antiphon.wire.items import ItemBase
from antiphon.wire.timeline import ItemTimes, RunTimes

from .kinds import KINDS, ItemKind

#: Returns unix seconds; None if the time is unknown.
OptionalClock = Callable[[], float | None]


def no_clock() -> None:
    """Return None: the time is unknown. This is the clock of a run whose times are not recorded."""


class RunTimer:
    """Records the times at which a run and its items start and end. The timer reads its clock a few
    times per item, but not for each token.

    ``times``: the times that were recorded before the run was interrupted; empty for a new run.
    """

    __slots__ = ("_clock", "_completed_at", "_created_at", "_items", "_started_at")

    def __init__(self, clock: OptionalClock = no_clock, times: RunTimes = RunTimes()) -> None:  # noqa: B008
        self._clock = clock
        self._created_at = times.created_at
        self._started_at = times.started_at
        self._completed_at = times.completed_at
        self._items = list(times.items)

    @property
    def times(self) -> RunTimes:
        """The times recorded so far."""
        return RunTimes(
            created_at=self._created_at,
            started_at=self._started_at,
            items=tuple(self._items),
            completed_at=self._completed_at,
        )

    def create(self) -> None:
        """Record the current time as the time at which the response was created."""
        self._created_at = self._clock()

    def start(self) -> None:
        """Record the current time as the time at which work on the response started."""
        self._started_at = self._clock()

    def open_item(self) -> None:
        """Record the current time as the start time of the next item."""
        self._items.append(ItemTimes(started_at=self._clock()))

    def write_item(self, index: int) -> None:
        """Record the current time as the time at which the text of an item was complete. The item
        may still be open."""
        self._items[index] = replace(self._items[index], written_at=self._clock())

    def close_item(self, index: int) -> None:
        """Record the current time as the time at which an item was closed."""
        self._items[index] = replace(self._items[index], completed_at=self._clock())

    def end(self) -> None:
        """Record the current time as the time at which the response ended."""
        self._completed_at = self._clock()


class LoggedTimes:
    """The times at which a run and its items started and ended, rebuilt from stored events."""

    def __init__(self, kinds: Mapping[type[ItemBase], ItemKind] = KINDS) -> None:
        texts = (kind.channels.get("text") for kind in kinds.values())
        #: Classes of the events that end the text of an item before the item ends.
        self._written = frozenset(
            text.done for text in texts if text is not None and text.part is None
        )
        self._at: float | None = None
        self._timer = RunTimer(lambda: self._at)

    @property
    def times(self) -> RunTimes:
        """The times of the run, rebuilt from the events read so far."""
        return self._timer.times

    def feed(self, event: ev.Event, at: float | None) -> None:
        """Read the next event. ``at``: the Unix time of the event in seconds; None if it is
        unknown."""
        self._at = at
        match event:
            case ev.Created():
                self._timer.create()
            case ev.InProgress():
                self._timer.start()
            case ev.OutputItemAdded():
                self._timer.open_item()
            case ev.OutputItemDone(output_index=index):
                self._timer.close_item(index)
            case _ if type(event) in self._written:
                self._timer.write_item(event.output_index)  # type: ignore[attr-defined]
