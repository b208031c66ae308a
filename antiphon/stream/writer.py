"""Write the numbered events of a run. All events of a run are created in this module.

Theory. A response is the fold of its events: ``fold.py`` can rebuild it from the events alone, and
the writer holds the same drafts (``draft.py``) as the fold, so that both have the same output at
each moment. Whatever is not in an event is not in the response. The writer therefore takes the
calls of the recorder ("open an item", "add text", "close it") and makes events of them, and it is
the only code that knows indexes, item ids and sequence numbers.

There are two levels. A ``ResponseWriter`` goes through the states of a response: ``create``,
``start``, any number of items, ``finalize``, and ``emit_terminal``. An ``ItemWriter`` goes through
those of one item: open, text in at most one part at a time, sealed (the model has finished it),
progress of its tool, closed. Which text an item may have, and which events say so, is a row of
``KINDS``; no branch here names a kind. ``finalize`` closes what is still open, so that every run
ends in a valid stream, and the terminal event is separate from it, because the response is stored
between the two.

The writer does no I/O and reads neither clock nor randomness: ids and times come from functions
that its caller passes in. With the same functions, the same calls create the same events, so a run
that another server takes over can be restored from its log (``restore``) and continued. If nobody
reads the events (``has_reader``), they are counted but not created, which gives a response without
a stream the same sequence numbers and costs less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from antiphon.errors import GrammarError
from antiphon.wire import events as ev
from antiphon.wire.items import Annotation, Item, ItemBase, Logprob
from antiphon.wire.response import IncompleteDetails, Response, ResponseError, Usage
from antiphon.wire.timeline import RunTimes

from .deltas import Channel
from .draft import MAX_PIECES, Draft, PartDraft
from .fold import Fold
from .kinds import KINDS, ItemKind, TextChannel
from .run_timer import OptionalClock, RunTimer, no_clock

#: Returns a new id with the given prefix.
Ids = Callable[[str], str]


class ItemWriter:
    """Writes the events of one output item. ``ResponseWriter.open`` creates the writer of an item.

    Several items may be open at the same time. ``seal`` ends the text of an item, and ``close``
    ends the item. For the call of a server-side tool, ``seal`` is called when the arguments are
    complete. The tool then runs, and ``close`` is called when it has finished.
    """

    __slots__ = (
        "_channel",
        "_draft",
        "_kind",
        "_out",
        "_part",
        "_sealed",
        "_tool_has_ended",
        "index",
        "is_open",
    )

    def __init__(self, out: ResponseWriter, shell: Item, kind: ItemKind, index: int) -> None:
        self._out = out
        self._kind = kind
        self._draft = Draft(shell)
        self._part: PartDraft | None = None
        #: The channel of the part; None if no part is open.
        self._channel: Channel | None = None
        self._sealed = False
        #: Whether the tool of a restored item had reported its end.
        self._tool_has_ended = False
        self.index = index
        self.is_open = True

    @classmethod
    def restore(
        cls,
        out: ResponseWriter,
        draft: Draft,
        kind: ItemKind,
        index: int,
        part: PartDraft | None,
        *,
        tool_has_ended: bool,
    ) -> ItemWriter:
        """Return a writer that continues an item after an interruption. ``draft``: the item so far.
        ``part``: the text that is still being written; None if no text is being written.
        ``tool_has_ended``: whether the tool had reported its end. If it runs again, because its
        result was lost, it reports nothing more."""
        item = cls(out, draft.shell, kind, index)
        item._draft = draft
        if part is not None:
            channels = kind.channels.items()
            item._set_part(part, next(c for c, each in channels if each is part.channel))
        # The arguments of a call are complete if no text is being written: its tool was running.
        item._sealed = part is None and draft.whole_text is not None
        item._tool_has_ended = tool_has_ended
        return item

    @property
    def shell(self) -> Item:
        """The shell of the item: the item as it was opened, without the text written since then."""
        return self._draft.shell

    @property
    def is_empty(self) -> bool:
        """Whether the item has no parts yet. Only for messages."""
        return not self._draft.part_drafts and not getattr(self.shell, "content", None)

    @property
    def value(self) -> Item:
        """The item with the text so far and the status ``in_progress``."""
        return self._draft.item("in_progress")

    def write(
        self, text: str, logprobs: tuple[Logprob, ...] = (), channel: Channel = "text"
    ) -> None:
        """Append text to the open part of the channel. ``channel``: the kind of the text, such as
        the answer or a refusal. If no part of this channel is open, open a new one. If a part of
        another channel is open, close that part first."""
        # The hot path: one event, whose position was looked up when the part was opened.
        part = self._open_part(channel) if channel != self._channel else self._part
        assert part is not None
        texts = part.texts
        texts.append(text)
        if len(texts) >= MAX_PIECES:
            part.join_pieces()
        if logprobs:
            part.logprobs.extend(logprobs)
        out = self._out
        number = out.number
        if out.has_reader:
            out.pending.append(part.make_delta(number, text, logprobs))
        out.number = number + 1

    def begin(self, channel: Channel = "text") -> None:
        """Open a part of the channel without writing text. If a part of the channel is already
        open, do nothing."""
        if channel != self._channel:
            self._open_part(channel)

    def add_summary(self, text: str) -> None:
        """Add a complete part to the summary of the item. If a part of another channel (another
        kind of text) is open, that part stays open."""
        if self._channel == "summary":
            self._close_part()
        part, channel, self._part = self._part, self._channel, None
        self._open_part("summary")
        self.write(text, channel="summary")
        self._close_part()
        self._part, self._channel = part, channel

    def annotate(self, annotation: Annotation) -> None:
        """Add a citation. ``annotation`` refers to text that was already written into the open
        part. Raises ``GrammarError`` if no part with text is open."""
        part = self._part
        if part is None or not part.channel.carries_logprobs:
            raise GrammarError("an annotation needs an open text part")
        part.annotations.append(annotation)
        self._emit(
            ev.OutputTextAnnotationAdded,
            content_index=part.index,
            annotation_index=len(part.annotations) - 1,
            annotation=annotation,
        )

    def progress(self, name: str, **fields: Any) -> None:
        """Emit a progress event of the item's tool. ``name``: a key of ``ItemKind.progress``.
        ``fields``: further fields of the event.

        In some item types, the item's text is the input of the tool. All progress events of these
        types, except ``in_progress``, show that the tool has its complete input, so before this
        method emits one of these events, it ends the text (``seal``).
        """
        if self._tool_has_ended:
            return
        event = self._kind.progress[name]
        if name != "in_progress" and self._has_whole_text:
            self.seal()
        if (field := self._kind.appended_fields.get(event)) is not None:
            self._draft.append_field(field, fields[field])
        if "item_id" not in event.__struct_fields__:
            self._out.emit(event, output_index=self.index, **fields)
        else:
            self._emit(event, **fields)

    @property
    def _has_whole_text(self) -> bool:
        """Whether the item's text is a field of the item itself, such as the arguments of a call.
        The text of other items is in parts, such as the content parts of a message."""
        channel = self._kind.channels.get("text")
        return channel is not None and channel.part is None

    def seal(self) -> None:
        """End the text of the item: no more text can be added. The item itself stays open until
        ``close`` is called, for example while its tool runs."""
        if self._sealed:
            return
        self._sealed = True
        if self._part is not None:
            self._close_part()
        elif self._has_whole_text:
            # Clients wait for the ``done`` event of the arguments, even if these are empty.
            self._part = self._draft.open_part(self._kind.channels["text"])
            self._close_part()
        if self._has_whole_text:
            self._out.timer.write_item(self.index)

    def close(self, status: str = "completed", **result: Any) -> Item:
        """Close the item and return it in its final state. ``result``: fields that a tool sets
        (``output``, ``results`` …). Raises ``GrammarError`` if the item is already closed."""
        if not self.is_open:
            raise GrammarError("the item is already closed")
        self.seal()
        self.is_open = False
        if status != "completed" and self._kind.incomplete_fields:
            result = {**self._kind.incomplete_fields, **result}
        item = self._draft.item(result.pop("status", status), **result)
        self._out.item_closed(self.index, item)
        return item

    def _open_part(self, channel: Channel) -> PartDraft:
        if self._sealed or not self.is_open:
            raise GrammarError("the text of the item is already complete")
        text_channel = self._kind.channels.get(channel)
        if text_channel is None:
            raise GrammarError(f"{type(self._draft.shell).__name__} has no {channel} text")
        if self._part is not None:
            self._close_part()
        part = self._draft.open_part(text_channel)
        self._set_part(part, channel)
        if not self._out.has_reader:
            self._out.number += text_channel.start_event_count
        elif text_channel.part_added is not None:
            self._emit(
                text_channel.part_added, part=part.part(), **{text_channel.index_field: part.index}
            )
        return part

    def _set_part(self, part: PartDraft, channel: Channel) -> None:
        self._part = part
        self._channel = channel
        if not self._out.has_reader:
            return
        make = _DELTA_MAKERS[part.channel.index_field if part.channel.part is not None else None]
        part.make_delta = make(part.channel, self._draft.item_id, self.index, part.index)

    def _close_part(self) -> None:
        part, self._part, self._channel = self._part, None, None
        assert part is not None
        text_channel = part.channel
        if not self._out.has_reader:
            self._out.number += text_channel.end_event_count
            return
        fields: dict[str, Any] = {text_channel.field: part.text()}
        if text_channel.part is not None:
            fields[text_channel.index_field] = part.index
        if text_channel.carries_logprobs:
            fields["logprobs"] = tuple(part.logprobs)
        for name in text_channel.repeated_fields:
            fields[name] = getattr(self._draft.shell, name)
        self._emit(text_channel.done, **fields)
        if text_channel.part_done is not None:
            self._emit(
                text_channel.part_done, part=part.close(), **{text_channel.index_field: part.index}
            )

    def _emit(self, event: type[ev.Event], **fields: object) -> None:
        self._out.emit(event, item_id=self._draft.item_id, output_index=self.index, **fields)


# Functions that make delta events, by the name of the events' index field. They pass arguments by
# name: unpacking them from a mapping takes three times as long, and this runs for every token.

_MakeDelta = Callable[[int, str, tuple[Logprob, ...]], ev.Event]


def _item_delta_maker(
    text_channel: TextChannel, item_id: str, output_index: int, _: int
) -> _MakeDelta:
    make: Any = text_channel.delta

    def delta(number: int, text: str, logprobs: tuple[Logprob, ...]) -> ev.Event:
        return make(  # type: ignore[no-any-return]
            sequence_number=number, delta=text, item_id=item_id, output_index=output_index
        )

    return delta


def _content_delta_maker(
    text_channel: TextChannel, item_id: str, output_index: int, index: int
) -> _MakeDelta:
    make: Any = text_channel.delta

    def without_logprobs(number: int, text: str, logprobs: tuple[Logprob, ...]) -> ev.Event:
        return make(  # type: ignore[no-any-return]
            sequence_number=number,
            delta=text,
            item_id=item_id,
            output_index=output_index,
            content_index=index,
        )

    def with_logprobs(number: int, text: str, logprobs: tuple[Logprob, ...]) -> ev.Event:
        return make(  # type: ignore[no-any-return]
            sequence_number=number,
            delta=text,
            logprobs=logprobs,
            item_id=item_id,
            output_index=output_index,
            content_index=index,
        )

    return with_logprobs if text_channel.carries_logprobs else without_logprobs


def _summary_delta_maker(
    text_channel: TextChannel, item_id: str, output_index: int, index: int
) -> _MakeDelta:
    make: Any = text_channel.delta

    def delta(number: int, text: str, logprobs: tuple[Logprob, ...]) -> ev.Event:
        return make(  # type: ignore[no-any-return]
            sequence_number=number,
            delta=text,
            item_id=item_id,
            output_index=output_index,
            summary_index=index,
        )

    return delta


_DELTA_MAKERS: Mapping[str | None, Callable[[TextChannel, str, int, int], _MakeDelta]] = {
    None: _item_delta_maker,
    "content_index": _content_delta_maker,
    "summary_index": _summary_delta_maker,
}


class ResponseWriter:
    """Writes the events of one run, from ``created`` to the terminal event (``completed``,
    ``incomplete`` or ``failed``).

    ``ids``: returns a new id for a prefix. ``kinds``: the table of item kinds. ``first_number``:
    the sequence number of the first event. It is not 0 if the run continues after an interruption.
    ``clock`` is read when the run starts and ends, and when an item starts and ends.
    """

    __slots__ = (
        "_ids",
        "_items",
        "_kinds",
        "_open",
        "_response",
        "has_reader",
        "number",
        "pending",
        "started",
        "timer",
    )

    def __init__(
        self,
        response: Response,
        *,
        ids: Ids,
        kinds: Mapping[type[ItemBase], ItemKind] = KINDS,
        first_number: int = 0,
        clock: OptionalClock = no_clock,
    ) -> None:
        self._response = response
        self._ids = ids
        self._kinds = kinds
        #: The sequence number of the next event.
        self.number = first_number
        #: The events since the last ``take``.
        self.pending: list[ev.Event] = []
        #: Whether a caller takes the events. If not, events are counted but not created.
        self.has_reader = True
        #: Whether ``start`` has been called.
        self.started = False
        self.timer = RunTimer(clock)
        self._items: list[Item | None] = []
        self._open: dict[int, ItemWriter] = {}

    @classmethod
    def restore(
        cls,
        log: Fold,
        *,
        ids: Ids,
        kinds: Mapping[type[ItemBase], ItemKind] = KINDS,
        number: int,
        clock: OptionalClock = no_clock,
        times: RunTimes = RunTimes(),  # noqa: B008
    ) -> ResponseWriter:
        """Return a writer in the state after the last event of ``log``. It continues the items that
        are still open.

        ``number``: the sequence number of the next event. ``times``: the times of the events of
        ``log``.
        """
        out = cls(log.response, ids=ids, kinds=kinds, first_number=number)
        out.timer = RunTimer(clock, times)
        out.started = log.response.status != "queued"
        for index in range(len(log.done_items) + len(log.open_items)):
            item = log.done_items.get(index)
            out._items.append(item)
            if item is None:
                draft = log.open_items[index]
                kind = kinds[type(draft.shell)]
                out._open[index] = ItemWriter.restore(
                    out,
                    draft,
                    kind,
                    index,
                    log.open_parts.get((index, "content")),
                    tool_has_ended=index in log.ended_tools,
                )
        return out

    @property
    def open_items(self) -> tuple[ItemWriter, ...]:
        """The writers of the open items, in the order of the output."""
        return tuple(self._open[index] for index in sorted(self._open))

    def take(self) -> tuple[ev.Event, ...]:
        """Return the events that were emitted since the last ``take``."""
        pending, self.pending = self.pending, []
        return tuple(pending)

    @property
    def response(self) -> Response:
        """The response so far, with finished and open items."""
        if not self._items:
            return self._response
        output = tuple(
            item if item is not None else self._open[index].value
            for index, item in enumerate(self._items)
        )
        return replace(self._response, output=output)

    @property
    def items(self) -> tuple[Item, ...]:
        """The finished items, in the order of the output."""
        return tuple([item for item in self._items if item is not None])

    def create(self) -> None:
        """Emit ``created``. If the response has the status ``queued``, also emit ``queued``."""
        self.timer.create()
        self.emit(ev.Created, response=self._response)
        if self._response.status == "queued":
            self.emit(ev.Queued, response=self._response)

    def start(self) -> None:
        """Emit ``in_progress``: work on the response has started."""
        self.started = True
        self.timer.start()
        if self._response.status != "in_progress":
            self._response = replace(self._response, status="in_progress")
        self.emit(ev.InProgress, response=self._response)

    def keepalive(self) -> None:
        """Emit a keepalive event."""
        self.emit(ev.Keepalive)

    def open(self, shell: Item) -> ItemWriter:
        """Open a new item and return its writer.

        If ``shell`` has no id, the item gets a new id. If the shell is a call with an empty
        ``call_id``, the call gets a new ``call_id``. Both ids stay the same until the item is
        closed.
        """
        kind = self._kinds[type(shell)]
        assigned: dict[str, Any] = {"id": shell.id or self._ids(kind.prefix)}
        if shell.call_id == "":
            assigned["call_id"] = self._ids("call")
        if kind.starts_in_progress and "status" in shell.__struct_fields__:
            assigned["status"] = "in_progress"
        shell = replace(shell, **assigned)
        index = len(self._items)
        self._items.append(None)
        self._open[index] = item = ItemWriter(self, shell, kind, index)
        self.timer.open_item()
        self.emit(ev.OutputItemAdded, output_index=index, item=shell)
        return item

    def item_closed(self, index: int, item: Item) -> None:
        """Emit the item's ``done`` event. Only ``ItemWriter.close`` calls this."""
        del self._open[index]
        self._items[index] = item
        self.timer.close_item(index)
        self.emit(ev.OutputItemDone, output_index=index, item=item)

    def finalize(
        self,
        status: str,
        *,
        at: int,
        usage: Usage | None,
        reason: str | None = None,
        error: ResponseError | None = None,
        **fields: object,
    ) -> Response:
        """End the run: close the open items and set the final status of the response.

        Returns the final response. The caller stores it and then calls ``emit_terminal``. Open
        items become ``completed`` or ``incomplete``, depending on ``status``. ``at``: Unix time in
        seconds. ``reason``: the reason of the status ``incomplete``. ``error``: the error of the
        status ``failed``. ``fields``: further fields of the response. The method may be called
        again before ``emit_terminal``, for example if the response could not be stored.
        """
        for item in list(self._open.values()):
            item.close("completed" if status == "completed" else "incomplete")
        self.timer.end()
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

    def amend(self, **fields: object) -> Response:
        """Set further fields of a finalized response, and return it."""
        self._response = replace(self._response, **fields)
        return self._response

    def emit_terminal(self) -> None:
        """Emit the terminal event of a finalized response.

        If the response has the status ``cancelled``, there is no terminal event: its stream just
        ends. If it has the status ``failed``, an ``error`` event precedes the ``failed`` event,
        because some clients read only ``error``.
        """
        error = self._response.error
        if error is not None:
            self.emit(
                ev.Error,
                code=error.exact_code,
                message=error.message,
                param=error.param,
                error=ev.ErrorBody(
                    type=error.type, code=error.exact_code, message=error.message, param=error.param
                ),
            )
        if (terminal := _TERMINAL.get(self._response.status)) is not None:
            self.emit(terminal, response=self._response)

    def emit(self, event: type[ev.Event], **fields: object) -> None:
        """Create an event with the next sequence number and add it to ``pending``. If no caller
        takes the events (``has_reader`` is false), only count the event."""
        if self.has_reader:
            self.pending.append(event(sequence_number=self.number, **fields))
        self.number += 1


_TERMINAL: Mapping[str, type[ev.Event]] = {
    "completed": ev.Completed,
    "incomplete": ev.Incomplete,
    "failed": ev.Failed,
}
