"""Rebuild a response from its event log. This is called folding the log.

The rebuilt response is a copy of the last response object in the log (the envelope) with a new
output. A finished item of the output is taken from its ``output_item.done`` event. An open item is
rebuilt from its ``delta`` events. An incomplete log, which contains only the first events, can be
folded too. Clients that retrieve a running response get the rebuilt response. Tests compare it with
the response of ``ResponseWriter``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from antiphon.wire import events as ev
from antiphon.wire.items import Item, ItemBase
from antiphon.wire.response import Response

from .draft import MAX_PIECES, Draft, PartDraft
from .kinds import KINDS, LAST_PROGRESS, ItemKind, TextChannel


class Fold:
    """A response that is rebuilt event by event. ``response`` is its state after the events read so
    far."""

    def __init__(self, kinds: Mapping[type[ItemBase], ItemKind] = KINDS) -> None:
        self._kinds = kinds
        self._envelope: Response | None = None
        #: By output index: finished items and open items.
        self.done_items: dict[int, Item] = {}
        self.open_items: dict[int, Draft] = {}
        #: Texts that are being written, by output index and name of the item's list of parts.
        self.open_parts: dict[tuple[int, str], PartDraft] = {}
        #: Output indexes of open items whose tool has reported its end.
        self.ended_tools: set[int] = set()

    def feed(self, event: ev.Event) -> None:
        """Apply the next event of the log to ``response``. An event that changes nothing in the
        response is ignored."""
        if (read := _HANDLERS.get(type(event))) is not None:
            read(self, event)
            return
        index = getattr(event, "output_index", None)
        if index is None or (draft := self.open_items.get(index)) is None:
            return
        self._text_event(index, draft, event)

    @property
    def response(self) -> Response:
        """The response so far. Raises ``ValueError`` if no event has contained a response yet."""
        if self._envelope is None:
            raise ValueError("no event with a response was read")
        items = {index: draft.item("in_progress") for index, draft in self.open_items.items()}
        items |= self.done_items
        return replace(self._envelope, output=tuple(items[index] for index in sorted(items)))

    def _take_envelope(self, event: ev.Event) -> None:
        self._envelope = event.response  # type: ignore[attr-defined]

    def _item_added(self, event: ev.Event) -> None:
        assert isinstance(event, ev.OutputItemAdded)
        self.open_items[event.output_index] = Draft(event.item)

    def _item_done(self, event: ev.Event) -> None:
        assert isinstance(event, ev.OutputItemDone)
        self.open_items.pop(event.output_index, None)
        for key in [key for key in self.open_parts if key[0] == event.output_index]:
            del self.open_parts[key]
        self.done_items[event.output_index] = event.item

    def _annotation_added(self, event: ev.Event) -> None:
        assert isinstance(event, ev.OutputTextAnnotationAdded)
        if (part := self.open_parts.get((event.output_index, "content"))) is not None:
            part.annotations.append(event.annotation)

    def _text_event(self, index: int, draft: Draft, event: ev.Event) -> None:
        kind = self._kinds[type(draft.shell)]
        if (field := kind.appended_fields.get(type(event))) is not None:
            draft.append_field(field, getattr(event, field))
            return
        if type(event) in map(kind.progress.get, LAST_PROGRESS):
            self.ended_tools.add(index)
            return
        for channel in kind.channels.values():
            key = (index, channel.list_field)
            if type(event) is channel.part_added and _starts_channel(channel, event):
                self.open_parts[key] = draft.open_part(channel)
            elif type(event) is channel.delta:
                part = self.open_parts.get(key)
                if part is None or part.channel is not channel:
                    part = self.open_parts[key] = draft.open_part(channel)
                part.texts.append(event.delta)  # type: ignore[attr-defined]
                if len(part.texts) >= MAX_PIECES:
                    part.join_pieces()
                part.logprobs.extend(getattr(event, "logprobs", ()))
            elif type(event) is channel.done:
                if channel.part is None and draft.whole_text is None:
                    draft.open_part(channel)  # the text is empty: no delta came
                self.open_parts.pop(key, None)


def _starts_channel(channel: TextChannel, event: ev.Event) -> bool:
    part: object = event.part  # type: ignore[attr-defined]
    return channel.part is not None and isinstance(part, channel.part)


_HANDLERS: Mapping[type[ev.Event], Callable[[Fold, ev.Event], None]] = {
    **dict.fromkeys(
        (ev.Created, ev.Queued, ev.InProgress, ev.Completed, ev.Incomplete, ev.Failed),
        Fold._take_envelope,
    ),
    ev.OutputItemAdded: Fold._item_added,
    ev.OutputItemDone: Fold._item_done,
    ev.OutputTextAnnotationAdded: Fold._annotation_added,
}


def fold(events: Iterable[ev.Event], kinds: Mapping[type[ItemBase], ItemKind] = KINDS) -> Response:
    """Return the response that the events describe. ``events``: a log, or the first events of a
    log."""
    folded = Fold(kinds)
    for event in events:
        folded.feed(event)
    return folded.response
