"""Translate events to the stream of the Messages API.

The content blocks of a message are numbered. A block with text or thinking opens with its first
delta, so an item without deltas, such as an empty text, has no block. The block of a tool call
opens when the call begins. The blocks of a server tool open when the tool has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.compat.translated_request import ChoiceStream
from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire.response import Response

from .answer import (
    AnswerForm,
    citation,
    message_diagnostics,
    message_end,
    message_usage,
    tool_blocks,
    tool_use,
)
from .citations import CitedText
from .errors import message_error_of_code
from .threads import message_id
from .types import (
    AnswerBlock,
    BlockDelta,
    BlockDeltaEvent,
    BlockStart,
    BlockStop,
    Citation,
    CitationsDelta,
    CompactionBlock,
    CompactionDelta,
    InputJsonDelta,
    McpUseBlock,
    MessageAnswer,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    Ping,
    ServerToolUseBlock,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
)

_encode = msgspec.json.Encoder().encode
#: Number of reasoning deltas per progress event when the text of the reasoning is not returned.
_HIDDEN_DELTAS = 16


def _frame(event: MessageEvent) -> bytes:
    name = str(event.__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + _encode(event) + b"\n\n"


#: Frame that keeps the connection open.
PING = _frame(Ping())


class MessageStream(ChoiceStream):
    """Encodes the events of one response as the events of one message. ``first``: the response as
    it is at the start of the stream. It determines the id, the model and the input tokens of the
    message."""

    def __init__(self, first: Response, form: AnswerForm) -> None:
        self._first = first
        self._form = form
        self._count = 0
        #: Output index of an item → index of the item's open block.
        self._blocks: dict[int, int] = {}
        #: Output indexes of the reasoning items whose full text was streamed. The summaries of
        #: these items are not streamed.
        self._full_texts: set[int] = set()
        self._hidden_deltas = 0
        #: Output index of a message → the reader of its citations; and the messages whose open
        #: block has citations, so that a further text begins a new block.
        self._readers: dict[int, CitedText] = {}
        self._cited: set[int] = set()

    def _frames(self, event: ev.Event) -> Iterator[bytes]:
        read = _EVENTS.get(type(event))
        return iter(()) if read is None else map(_frame, read(self, event))

    # --- blocks ----------------------------------------------------------------------------------

    def _start(self, output_index: int, block: AnswerBlock) -> BlockStart:
        index = self._blocks[output_index] = self._count
        self._count += 1
        return BlockStart(index, block)

    def _delta(self, output_index: int, delta: BlockDelta) -> BlockDeltaEvent:
        return BlockDeltaEvent(self._blocks[output_index], delta)

    def _stop(self, output_index: int) -> Iterator[MessageEvent]:
        """If the output item with this index has an open content block, yield the event that ends
        the block."""
        index = self._blocks.pop(output_index, None)
        if index is not None:
            yield BlockStop(index)

    # --- events ----------------------------------------------------------------------------------

    def _created(self, event: ev.Created) -> Iterator[MessageEvent]:
        first = self._first
        yield MessageStart(
            MessageAnswer(
                id=message_id(first.id),
                model=first.model,
                usage=message_usage(first),
                diagnostics=message_diagnostics(first),
            )
        )

    def _text_delta(self, event: ev.OutputTextDelta | ev.RefusalDelta) -> Iterator[MessageEvent]:
        at = event.output_index
        if not self._form.passages:
            if at not in self._blocks:
                yield self._start(at, TextBlock(text=""))
            yield self._delta(at, TextDelta(event.delta))
            return
        reader = self._readers.setdefault(at, CitedText(self._form.passages))
        yield from self._pieces(at, reader.feed(event.delta))

    def _pieces(self, at: int, pieces: Iterable[str | Citation]) -> Iterator[MessageEvent]:
        """Yield the events for pieces of a text that cites documents."""
        for piece in pieces:
            is_text = isinstance(piece, str)
            if is_text and at in self._cited:
                self._cited.discard(at)
                yield from self._stop(at)
            if at not in self._blocks:
                yield self._start(at, TextBlock(text=""))
            if not is_text:
                self._cited.add(at)
            yield self._delta(
                at, TextDelta(piece) if isinstance(piece, str) else CitationsDelta(piece)
            )

    def _annotation(self, event: ev.OutputTextAnnotationAdded) -> Iterator[MessageEvent]:
        cited = citation(event.annotation)
        if cited is not None and event.output_index in self._blocks:
            yield self._delta(event.output_index, CitationsDelta(cited))

    def _part_done(self, event: ev.ContentPartDone) -> Iterator[MessageEvent]:
        if isinstance(event.part, it.OutputText | it.Refusal):
            yield from self._end_text(event.output_index)

    def _end_text(self, at: int) -> Iterator[MessageEvent]:
        if (reader := self._readers.pop(at, None)) is not None:
            yield from self._pieces(at, reader.feed("", final=True))
        self._cited.discard(at)
        yield from self._stop(at)

    def _reasoning_delta(
        self, event: ev.ReasoningTextDelta | ev.ReasoningDelta
    ) -> Iterator[MessageEvent]:
        self._full_texts.add(event.output_index)
        return self._thinking_delta(event.output_index, event.delta)

    def _summary_delta(self, event: ev.ReasoningSummaryTextDelta) -> Iterator[MessageEvent]:
        if event.output_index not in self._full_texts:
            yield from self._thinking_delta(event.output_index, event.delta)

    def _thinking_delta(self, output_index: int, text: str) -> Iterator[MessageEvent]:
        if output_index not in self._blocks:
            yield self._start(output_index, ThinkingBlock(thinking="", signature=""))
        if not self._form.omits_thinking:
            yield self._delta(output_index, ThinkingDelta(text))
            return
        self._hidden_deltas += 1
        if self._hidden_deltas % _HIDDEN_DELTAS == 0:
            yield self._delta(output_index, ThinkingDelta("", _HIDDEN_DELTAS))

    def _item_added(self, event: ev.OutputItemAdded) -> Iterator[MessageEvent]:
        if isinstance(call := event.item, it.FunctionCall):
            yield self._start(event.output_index, tool_use(call, {}))

    def _arguments_delta(self, event: ev.FunctionCallArgumentsDelta) -> Iterator[MessageEvent]:
        yield self._delta(event.output_index, InputJsonDelta(event.delta))

    def _item_done(self, event: ev.OutputItemDone) -> Iterator[MessageEvent]:
        at, item = event.output_index, event.item
        if blocks := tool_blocks(item, self._form):
            for block in blocks:
                yield from self._server_block(at, block)
        elif isinstance(item, it.Reasoning) and item.encrypted_content:
            if at not in self._blocks:
                yield self._start(at, ThinkingBlock(thinking="", signature=""))
            yield self._delta(at, SignatureDelta(item.encrypted_content))
        yield from self._stop(at)

    def _server_block(self, output_index: int, block: AnswerBlock) -> Iterator[MessageEvent]:
        """Yield the events of a block of a server tool, which is complete. The input of a call
        and a summary are sent as a delta."""
        if isinstance(block, ServerToolUseBlock | McpUseBlock):
            yield self._start(output_index, replace(block, input={}))
            yield self._delta(output_index, InputJsonDelta(_encode(block.input).decode()))
        elif isinstance(block, CompactionBlock):
            yield self._start(output_index, CompactionBlock(content=None, encrypted_content=None))
            delta = CompactionDelta(block.content, block.encrypted_content)
            yield self._delta(output_index, delta)
        else:
            yield self._start(output_index, block)
        yield from self._stop(output_index)

    def _ended(self, event: ev.Completed | ev.Incomplete) -> Iterator[MessageEvent]:
        response = event.response
        for output_index in tuple(self._blocks):
            yield from self._end_text(output_index)
        yield MessageDelta(
            message_end(response, self._form),
            message_usage(response),
            self._form.context_management,
            self._form.omitted_parts or UNSET,
        )
        yield MessageStop()

    def _failed(self, event: ev.Error) -> Iterator[MessageEvent]:
        yield message_error_of_code(event.error.code or "", event.error.message)

    def _keepalive(self, event: ev.Keepalive) -> Iterator[MessageEvent]:
        yield Ping()


#: Type of an event → function that returns the resulting events of the Messages API. Other events
#: produce no event.
_EVENTS: Mapping[type[ev.Event], Callable[[MessageStream, Any], Iterator[MessageEvent]]] = {
    ev.Created: MessageStream._created,
    ev.OutputTextDelta: MessageStream._text_delta,
    ev.RefusalDelta: MessageStream._text_delta,
    ev.OutputTextAnnotationAdded: MessageStream._annotation,
    ev.ContentPartDone: MessageStream._part_done,
    ev.ReasoningTextDelta: MessageStream._reasoning_delta,
    ev.ReasoningDelta: MessageStream._reasoning_delta,
    ev.ReasoningSummaryTextDelta: MessageStream._summary_delta,
    ev.OutputItemAdded: MessageStream._item_added,
    ev.FunctionCallArgumentsDelta: MessageStream._arguments_delta,
    ev.OutputItemDone: MessageStream._item_done,
    ev.Completed: MessageStream._ended,
    ev.Incomplete: MessageStream._ended,
    ev.Error: MessageStream._failed,
    ev.Keepalive: MessageStream._keepalive,
}
