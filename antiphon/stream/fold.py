"""The fold: a log of events read back into the response it stands for.

Last envelope plus items: done items as they were sealed, open items from their deltas. Any prefix
of a log folds. It is the law the writer is held to, and what a reader of a running response sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from antiphon.wire import events as ev
from antiphon.wire.items import Item, ItemBase
from antiphon.wire.response import Response

from .draft import Draft, PartDraft
from .kinds import KINDS, Kind, TextChannel

__all__ = ["Fold", "fold"]


class Fold:
    """Reads events one by one; ``response`` is what they amount to so far."""

    def __init__(self, kinds: Mapping[type[ItemBase], Kind] = KINDS) -> None:
        self._kinds = kinds
        self._envelope: Response | None = None
        #: By output index: what is done, what is open, and where the text of what is open goes.
        self.items: dict[int, Item] = {}
        self.open: dict[int, Draft] = {}
        self.writing: dict[int, PartDraft] = {}

    def feed(self, event: ev.Event) -> None:
        """Take the next event of the log."""
        if (read := _READ.get(type(event))) is not None:
            read(self, event)
            return
        index = getattr(event, "output_index", None)
        if index is None or (draft := self.open.get(index)) is None:
            return
        self._text(index, draft, event)

    @property
    def response(self) -> Response:
        """The response so far. Raises ``ValueError`` before the first envelope."""
        if self._envelope is None:
            raise ValueError("a log begins with an envelope")
        items = {index: draft.item("in_progress") for index, draft in self.open.items()}
        items |= self.items
        return replace(self._envelope, output=tuple(items[index] for index in sorted(items)))

    def _snapshot(self, event: ev.Event) -> None:
        self._envelope = event.response  # type: ignore[attr-defined]

    def _added(self, event: ev.Event) -> None:
        assert isinstance(event, ev.OutputItemAdded)
        self.open[event.output_index] = Draft(event.item)

    def _done(self, event: ev.Event) -> None:
        assert isinstance(event, ev.OutputItemDone)
        self.open.pop(event.output_index, None)
        self.writing.pop(event.output_index, None)
        self.items[event.output_index] = event.item

    def _annotated(self, event: ev.Event) -> None:
        assert isinstance(event, ev.OutputTextAnnotationAdded)
        if (part := self.writing.get(event.output_index)) is not None:
            part.annotations.append(event.annotation)

    def _text(self, index: int, draft: Draft, event: ev.Event) -> None:
        kind = self._kinds[type(draft.shell)]
        if (field := kind.gathered.get(type(event))) is not None:
            draft.gather(field, getattr(event, field))
            return
        for stem in kind.stems.values():
            if type(event) is stem.part_added and _is_of(stem, event):
                self.writing[index] = draft.begin(stem)
            elif type(event) is stem.delta:
                part = self.writing.get(index)
                if part is None or part.stem is not stem:
                    part = self.writing[index] = draft.begin(stem)
                part.texts.append(event.delta)  # type: ignore[attr-defined]
                part.logprobs.extend(getattr(event, "logprobs", ()))
            elif type(event) is stem.done:
                if stem.part is None and draft.whole is None:
                    draft.begin(stem)  # all of it was nothing
                self.writing.pop(index, None)


def _is_of(stem: TextChannel, event: ev.Event) -> bool:
    return stem.part is not None and isinstance(event.part, stem.part)  # type: ignore[attr-defined]


_READ: Mapping[type[ev.Event], Callable[[Fold, ev.Event], None]] = {
    **dict.fromkeys(
        (ev.Created, ev.Queued, ev.InProgress, ev.Completed, ev.Incomplete, ev.Failed),
        Fold._snapshot,
    ),
    ev.OutputItemAdded: Fold._added,
    ev.OutputItemDone: Fold._done,
    ev.OutputTextAnnotationAdded: Fold._annotated,
}


def fold(events: Iterable[ev.Event], kinds: Mapping[type[ItemBase], Kind] = KINDS) -> Response:
    """The response that ``events``, a log or a prefix of one, amount to."""
    folded = Fold(kinds)
    for event in events:
        folded.feed(event)
    return folded.response
