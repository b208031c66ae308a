"""Build the deltas of a reply that a remote server streams.

Only one item is open at a time. A message or a reasoning item is opened at the latest when its
first text arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import UNSET, UnsetType

from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.stream.deltas import Annotate, Channel, Close, Delta, Open, Progress, Text
from antiphon.stream.kinds import KINDS, ItemKind
from antiphon.wire.items import (
    Annotation,
    Caller,
    CustomToolCall,
    FunctionCall,
    Item,
    Logprob,
    Message,
    Reasoning,
)

_Kind = Literal["message", "reasoning", "call", "other"]
_MESSAGE = Open(Message(role="assistant", content=()))
_REASONING = Open(Reasoning())
_CLOSE = Close()


class DeltaBuilder:
    """Collects the deltas of a reply. It also implements ``CallSink``, the interface through which
    ``CallBuilder`` adds tool calls.

    An item has one or more channels. A channel is a kind of text, such as the summary of reasoning.
    If text arrives for a channel that the open item does not have, it goes into the item's channel
    ``text``. If the item has no channel ``text``, the text is dropped. Other deltas that do not fit
    the open item are dropped too.

    ``open``: the kind of the open item, or None. ``used_call_ids``: ids of the conversation's
    calls, which new calls must not reuse.
    """

    def __init__(self, used_call_ids: Iterable[str]) -> None:
        #: The deltas that were added since the last ``take_deltas``.
        self._out: list[Delta] = []
        self.open: _Kind | None = None
        #: The kind of the open item, and the channel of its last text.
        self._item_kind: ItemKind | None = None
        self._channel: Channel | None = None
        #: Consecutive texts of the channel, which become one delta, and their log-probabilities.
        self._texts: list[str] = []
        self._logprobs: list[Logprob] = []
        self._used_call_ids = used_call_ids
        self._call_ids = {""}

    def text(
        self,
        kind: Literal["message", "reasoning"],
        text: str,
        logprobs: tuple[Logprob, ...] = (),
        channel: Channel = "text",
    ) -> None:
        """Add text to the open item if it is of type ``kind``. Otherwise, close the open item and
        open a new item of type ``kind`` for the text. White space alone does not open a reasoning
        item."""
        if self.open != kind:
            if kind == "reasoning" and not text.strip():
                return
            self.open_text_item(kind)
        if channel == self._channel or self._turn_to(channel):
            self._texts.append(text)
            if logprobs and channel == self._channel:
                self._logprobs += logprobs

    def add_text(self, text: str) -> None:
        """Add text of the answer."""
        self.text("message", text)

    def _turn_to(self, channel: Channel) -> bool:
        """Let the next texts belong to a channel of the open item. Return False if the item has no
        channel for them."""
        channels = {} if self._item_kind is None else self._item_kind.channels
        taken: Channel = channel if channel in channels else "text"
        if taken not in channels:
            return False
        if taken != self._channel:
            self._end_text()
            self._channel = taken
        return True

    def _end_text(self) -> None:
        """Add the texts since the last delta as a delta."""
        if self._texts and self._channel is not None:
            self._out.append(Text("".join(self._texts), tuple(self._logprobs), self._channel))
            self._texts, self._logprobs = [], []

    def add(self, delta: Delta) -> None:
        """Add a delta that neither opens nor closes an item."""
        self._end_text()
        self._out.append(delta)

    def annotate(self, annotation: Annotation) -> None:
        """Add a citation. A citation that does not follow text of a message is dropped."""
        if self.open == "message" and self._channel == "text":
            self.add(Annotate(annotation))

    def progress(self, name: str, fields: Mapping[str, object] | None = None) -> None:
        """Add an event about the progress of the open item, such as ``searching``. The event is
        dropped if the open item is of a kind that has no event of this name."""
        if self._item_kind is not None and name in self._item_kind.progress:
            self.add(Progress(name, fields=fields or {}))

    def take_deltas(self) -> tuple[Delta, ...]:
        """Return the deltas that were added since the last call, and clear them."""
        self._end_text()
        out, self._out = self._out, []
        return tuple(out)

    def open_text_item(self, kind: Literal["message", "reasoning"]) -> None:
        """Open a message or a reasoning item, even if no text follows."""
        self.close()
        self._open(_MESSAGE if kind == "message" else _REASONING, kind)

    def open_item(self, item: Item, kind: _Kind) -> None:
        """Close the open item, and open ``item``."""
        self.close()
        self._open(Open(item), kind)

    def _open(self, delta: Open, kind: _Kind) -> None:
        self.add(delta)
        self.open, self._item_kind, self._channel = kind, KINDS[type(delta.item)], None

    def open_call(self, shape: ToolShape, call_id: str, caller: Caller | UnsetType = UNSET) -> None:
        """Open a tool call. If another call already has the id ``call_id``, the new call gets an
        empty id here, and the code that processes the deltas assigns a new id.

        ``shape``: the name and the kind of the tool. ``caller``: who makes the call, which is the
        model itself or a program that the model wrote; UNSET if this is unknown.
        """
        self._call_ids.update(self._used_call_ids)  # only now, because few answers have calls
        call_id = "" if call_id in self._call_ids else call_id[:256]
        self._call_ids.add(call_id)
        name, namespace = shape.wire_name, UNSET if shape.namespace is None else shape.namespace
        item: Item = (
            CustomToolCall(call_id=call_id, name=name, input="", namespace=namespace, caller=caller)
            if shape.custom
            else FunctionCall(
                call_id=call_id, name=name, arguments="", namespace=namespace, caller=caller
            )
        )
        self.open_item(item, "call")

    def add_arguments(self, text: str) -> None:
        if text and (self._channel == "text" or self._turn_to("text")):
            self._texts.append(text)

    def close_call(self, *, is_complete: bool = True) -> None:
        if is_complete or self.open is None:
            self.close()
        else:
            self.add(Close(status="incomplete"))
            self.open = self._item_kind = self._channel = None

    def close(self, upstream_state: str = "", **result: object) -> None:
        """Close the open item, if there is one.

        ``upstream_state``: data that only the upstream can read. It becomes the item's field
        ``encrypted_content``. ``result``: final values of the item's fields.
        """
        if self.open is not None:
            if upstream_state:
                result["encrypted_content"] = upstream_state
            self.add(Close(result) if result else _CLOSE)
            self.open = self._item_kind = self._channel = None

    def append_all(self, deltas: Iterable[Delta]) -> None:
        """Append deltas that a parser has already built. These deltas may open and close items."""
        for delta in deltas:
            if isinstance(delta, Open):
                self._open(delta, "reasoning" if delta.item.is_reasoning else "message")
                continue
            self.add(delta)
            if isinstance(delta, Close):
                self.open = self._item_kind = self._channel = None
            elif isinstance(delta, Text):
                self._channel = delta.channel
