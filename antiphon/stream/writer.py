"""The writer: the only place where events are made. Deltas go in by its methods, events come out
of ``take``. Callers never see an index, an item id or a sequence number.

It knows neither models nor sockets nor clocks: ids come from a source passed in, and so does time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from antiphon.errors import GrammarError
from antiphon.wire import events as ev
from antiphon.wire.items import Annotation, Item, ItemBase, Logprob
from antiphon.wire.response import IncompleteDetails, Response, ResponseError, Usage

from .deltas import Channel
from .draft import Draft, PartDraft
from .fold import Fold
from .kinds import KINDS, Kind, TextChannel

__all__ = ["Ids", "ItemWriter", "ResponseWriter"]

#: Gives a fresh id with the prefix it is asked for.
Ids = Callable[[str], str]


class ItemWriter:
    """One item of the output, from ``added`` to ``done``. Several may be open at once.

    ``seal`` and ``close`` are different moments: a hosted tool works between them.
    """

    __slots__ = ("_channel", "_draft", "_kind", "_out", "_part", "_sealed", "index", "is_open")

    def __init__(self, out: ResponseWriter, shell: Item, kind: Kind, index: int) -> None:
        self._out = out
        self._kind = kind
        self._draft = Draft(shell)
        self._part: PartDraft | None = None
        #: Of the part; None where there is none.
        self._channel: Channel | None = None
        self._sealed = False
        self.index = index
        self.is_open = True

    @classmethod
    def restored(
        cls, out: ResponseWriter, draft: Draft, kind: Kind, index: int, part: PartDraft | None
    ) -> ItemWriter:
        """An item that was begun elsewhere, with the part that is still being written."""
        item = cls(out, draft.shell, kind, index)
        item._draft = draft
        if part is not None:
            item._place(part)
        # of a call that is no more written, all has been said: its tool was at work
        item._sealed = part is None and draft.whole is not None
        return item

    @property
    def value(self) -> Item:
        """The item so far, in progress."""
        return self._draft.item("in_progress")

    def write(
        self, text: str, logprobs: tuple[Logprob, ...] = (), channel: Channel = "text"
    ) -> None:
        """More text. A text of another channel closes the part being written and opens its own."""
        # The hot path: one event, its place known since the part began.
        part = self._begin(channel) if channel != self._channel else self._part
        assert part is not None
        part.texts.append(text)
        if logprobs:
            part.logprobs.extend(logprobs)
        out = self._out
        number = out.number
        out.pending.append(part.delta(number, text, logprobs))
        out.number = number + 1

    def annotate(self, annotation: Annotation) -> None:
        """Cite: ``annotation`` speaks of text already written into the open part."""
        part = self._part
        if part is None or not part.stem.carries_logprobs:
            raise GrammarError("an annotation needs an open text part")
        part.annotations.append(annotation)
        self._emit(
            ev.OutputTextAnnotationAdded,
            content_index=part.index,
            annotation_index=len(part.annotations) - 1,
            annotation=annotation,
        )

    def progress(self, name: str, **fields: Any) -> None:
        """Report a step of the tool behind this item, by its name in the table of kinds."""
        event = self._kind.progress[name]
        if (field := self._kind.gathered.get(event)) is not None:
            self._draft.gather(field, fields[field])
        if "item_id" not in event.__struct_fields__:
            self._out.emit(event, output_index=self.index, **fields)
        else:
            self._emit(event, **fields)

    def seal(self) -> None:
        """The model has said all of it: the text is whole, the item not yet over."""
        if self._sealed:
            return
        self._sealed = True
        if self._part is not None:
            self._end_part()
        elif (stem := self._kind.stems.get("text")) is not None and stem.part is None:
            # A call without arguments still says so: clients wait for the ``done``.
            self._part = self._draft.begin(stem)
            self._end_part()

    def close(self, status: str = "completed", **result: Any) -> Item:
        """The item is over. ``result`` fills what a tool found (``output``, ``results`` …)."""
        if not self.is_open:
            raise GrammarError("an item is closed once")
        self.seal()
        self.is_open = False
        if status != "completed" and self._kind.unfinished:
            result = {**self._kind.unfinished, **result}
        item = self._draft.item(result.pop("status", status), **result)
        self._out.closed(self.index, item)
        return item

    def _begin(self, channel: Channel) -> PartDraft:
        if self._sealed or not self.is_open:
            raise GrammarError("text after the end of an item")
        stem = self._kind.stems.get(channel)
        if stem is None:
            raise GrammarError(f"{type(self._draft.shell).__name__} has no {channel} text")
        if self._part is not None:
            self._end_part()
        part = self._draft.begin(stem)
        self._place(part)
        if stem.part_added is not None:
            self._emit(stem.part_added, part=part.part(), **{stem.index: part.index})
        return part

    def _place(self, part: PartDraft) -> None:
        self._part = part
        self._channel = next(c for c, stem in self._kind.stems.items() if stem is part.stem)
        make = _MAKERS[part.stem.index if part.stem.part is not None else None]
        part.delta = make(part.stem, self._draft.item_id, self.index, part.index)

    def _end_part(self) -> None:
        part, self._part, self._channel = self._part, None, None
        assert part is not None
        stem = part.stem
        fields: dict[str, Any] = {stem.field: part.text()}
        if stem.part is not None:
            fields[stem.index] = part.index
        if stem.carries_logprobs:
            fields["logprobs"] = tuple(part.logprobs)
        self._emit(stem.done, **fields)
        if stem.part_done is not None:
            self._emit(stem.part_done, part=part.part(), **{stem.index: part.index})

    def _emit(self, event: type[ev.Event], **fields: Any) -> None:
        self._out.emit(event, item_id=self._draft.item_id, output_index=self.index, **fields)


# How deltas are made, by the name of their text's index. Arguments that are named where they are
# passed cost a third of those unpacked from a mapping, and this is paid for every token.

_Delta = Callable[[int, str, tuple[Logprob, ...]], ev.Event]


def _whole(stem: TextChannel, item_id: str, output_index: int, _: int) -> _Delta:
    make: Any = stem.delta

    def delta(number: int, text: str, logprobs: tuple[Logprob, ...]) -> ev.Event:
        return make(  # type: ignore[no-any-return]
            sequence_number=number, delta=text, item_id=item_id, output_index=output_index
        )

    return delta


def _content(stem: TextChannel, item_id: str, output_index: int, index: int) -> _Delta:
    make: Any = stem.delta

    def plain(number: int, text: str, logprobs: tuple[Logprob, ...]) -> ev.Event:
        return make(  # type: ignore[no-any-return]
            sequence_number=number,
            delta=text,
            item_id=item_id,
            output_index=output_index,
            content_index=index,
        )

    def weighed(number: int, text: str, logprobs: tuple[Logprob, ...]) -> ev.Event:
        return make(  # type: ignore[no-any-return]
            sequence_number=number,
            delta=text,
            logprobs=logprobs,
            item_id=item_id,
            output_index=output_index,
            content_index=index,
        )

    return weighed if stem.carries_logprobs else plain


def _summary(stem: TextChannel, item_id: str, output_index: int, index: int) -> _Delta:
    make: Any = stem.delta

    def delta(number: int, text: str, logprobs: tuple[Logprob, ...]) -> ev.Event:
        return make(  # type: ignore[no-any-return]
            sequence_number=number,
            delta=text,
            item_id=item_id,
            output_index=output_index,
            summary_index=index,
        )

    return delta


_MAKERS: Mapping[str | None, Callable[[TextChannel, str, int, int], _Delta]] = {
    None: _whole,
    "content_index": _content,
    "summary_index": _summary,
}


class ResponseWriter:
    """One run's events, from ``created`` to the terminal one. ``number`` is the first sequence
    number (a run that goes on elsewhere does not begin at 0)."""

    __slots__ = ("_ids", "_items", "_kinds", "_open", "_response", "begun", "number", "pending")

    def __init__(
        self,
        response: Response,
        *,
        ids: Ids,
        kinds: Mapping[type[ItemBase], Kind] = KINDS,
        number: int = 0,
    ) -> None:
        self._response = response
        self._ids = ids
        self._kinds = kinds
        #: The sequence number of the next event.
        self.number = number
        #: The events since the last ``take``.
        self.pending: list[ev.Event] = []
        #: Work has started.
        self.begun = False
        self._items: list[Item | None] = []
        self._open: dict[int, ItemWriter] = {}

    @classmethod
    def restored(
        cls, log: Fold, *, ids: Ids, kinds: Mapping[type[ItemBase], Kind] = KINDS, number: int
    ) -> ResponseWriter:
        """The writer as it was when the last event of ``log`` had been written: it goes on with
        ``number``, in the items that are still open."""
        out = cls(log.response, ids=ids, kinds=kinds, number=number)
        out.begun = log.response.status != "queued"
        for index in range(len(log.items) + len(log.open)):
            item = log.items.get(index)
            out._items.append(item)
            if item is None:
                draft = log.open[index]
                kind = kinds[type(draft.shell)]
                out._open[index] = ItemWriter.restored(
                    out, draft, kind, index, log.writing.get(index)
                )
        return out

    @property
    def open_items(self) -> tuple[ItemWriter, ...]:
        """The items that are not done, in order."""
        return tuple(self._open[index] for index in sorted(self._open))

    def take(self) -> tuple[ev.Event, ...]:
        """The events since the last call."""
        pending, self.pending = self.pending, []
        return tuple(pending)

    @property
    def response(self) -> Response:
        """The response so far, with the items done and those still open."""
        output = tuple(
            item if item is not None else self._open[index].value
            for index, item in enumerate(self._items)
        )
        return replace(self._response, output=output)

    @property
    def items(self) -> tuple[Item, ...]:
        """The items that are done, in order."""
        return tuple(item for item in self._items if item is not None)

    def create(self) -> None:
        """The first event. The status is the response's own: ``in_progress`` or ``queued``."""
        self.emit(ev.Created, response=self._response)
        if self._response.status == "queued":
            self.emit(ev.Queued, response=self._response)

    def begin(self) -> None:
        """Work starts."""
        self.begun = True
        self._response = replace(self._response, status="in_progress")
        self.emit(ev.InProgress, response=self._response)

    def keepalive(self) -> None:
        """Say that we are still there."""
        self.emit(ev.Keepalive)

    def open(self, shell: Item) -> ItemWriter:
        """A new item. Its id is given here and never changes, and so is a call's ``call_id`` where
        the model did not write one."""
        kind = self._kinds[type(shell)]
        given: dict[str, Any] = {"id": shell.id or self._ids(kind.prefix)}
        if getattr(shell, "call_id", None) == "":
            given["call_id"] = self._ids("call")
        if kind.begins and "status" in shell.__struct_fields__:
            given["status"] = "in_progress"
        shell = replace(shell, **given)
        index = len(self._items)
        self._items.append(None)
        self._open[index] = item = ItemWriter(self, shell, kind, index)
        self.emit(ev.OutputItemAdded, output_index=index, item=shell)
        return item

    def closed(self, index: int, item: Item) -> None:
        """Called by an item that closes."""
        del self._open[index]
        self._items[index] = item
        self.emit(ev.OutputItemDone, output_index=index, item=item)

    def finalize(
        self,
        status: str,
        *,
        at: int,
        usage: Usage | None,
        reason: str | None = None,
        error: ResponseError | None = None,
        **fields: Any,
    ) -> Response:
        """The run is over: what is open is closed with the matching status. Returns the response in
        its terminal state, which can now be persisted; ``announce`` then tells the readers.

        ``at`` is unix seconds. ``reason`` belongs to ``incomplete``, ``error`` to ``failed``;
        ``fields`` are further fields of the response that became known on the way. May be called
        again before ``announce`` (persisting failed).
        """
        for item in list(self._open.values()):
            item.close("completed" if status == "completed" else "incomplete")
        self._response = replace(
            self._response,
            status=status,
            completed_at=at if status == "completed" else None,
            incomplete_details=IncompleteDetails(reason=reason) if reason else None,  # type: ignore[arg-type]
            error=error,
            usage=usage,
            output=self.items,
            **fields,
        )
        return self._response

    def emit_terminal(self) -> None:
        """The one terminal event of a settled response. None for ``cancelled``: there is no such
        event, the stream ends after its last one. A failure says ``error`` first, for the clients
        that only read that."""
        error = self._response.error
        if error is not None:
            self.emit(
                ev.Error,
                code=error.code,
                message=error.message,
                param=error.param,
                error=ev.ErrorBody(
                    type=error.type, code=error.code, message=error.message, param=error.param
                ),
            )
        if (terminal := _TERMINAL.get(self._response.status)) is not None:
            self.emit(terminal, response=self._response)

    def emit(self, event: type[ev.Event], **fields: Any) -> None:
        """Number an event and queue it."""
        self.push(event(sequence_number=self.number, **fields))

    def push(self, event: ev.Event) -> None:
        """Queue an event that has the next ``number``."""
        self.pending.append(event)
        self.number += 1


_TERMINAL: Mapping[str, type[ev.Event]] = {
    "completed": ev.Completed,
    "incomplete": ev.Incomplete,
    "failed": ev.Failed,
}
