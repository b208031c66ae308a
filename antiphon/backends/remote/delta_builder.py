"""Deltas of a reply that is read from elsewhere: one item open at a time, opened when it has
something to say. The ``Sink`` of calls. It knows no upstream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.stream.deltas import Channel, Close, Delta, Open, Text
from antiphon.wire.items import (
    Caller,
    CustomToolCall,
    FunctionCall,
    Item,
    Logprob,
    Message,
    Reasoning,
)

__all__ = ["DeltaBuilder"]

_Kind = Literal["message", "reasoning", "call", "other"]
_MESSAGE = Open(Message(role="assistant", content=()))
_REASONING = Open(Reasoning())
_CLOSE = Close()


class DeltaBuilder:
    """``out``: what has been written since it was last emptied. ``taken``: ids that calls have."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.out: list[Delta] = []
        self.open: _Kind | None = None
        self._call_ids = {"", *taken}

    def text(
        self,
        kind: Literal["message", "reasoning"],
        text: str,
        logprobs: Sequence[Logprob] = (),
        channel: Channel = "text",
    ) -> None:
        if self.open != kind:
            if kind == "reasoning" and not text.strip():
                return
            self.begin(kind)
        self._say(text, tuple(logprobs), channel)

    def _say(self, text: str, logprobs: tuple[Logprob, ...], channel: Channel) -> None:
        """Texts that come at one time are one."""
        out = self.out
        last = out[-1] if out else None
        if isinstance(last, Text) and last.channel == channel:
            out[-1] = Text(last.text + text, last.logprobs + logprobs, channel)
        else:
            out.append(Text(text, logprobs, channel))

    def take(self) -> tuple[Delta, ...]:
        """What has been written since the last call."""
        out, self.out = self.out, []
        return tuple(out)

    def begin(self, kind: Literal["message", "reasoning"]) -> None:
        """Open one, whatever is said in it."""
        self.close()
        self.out.append(_MESSAGE if kind == "message" else _REASONING)
        self.open = kind

    def item(self, item: Item, kind: _Kind) -> None:
        """Open this one."""
        self.close()
        self.out.append(Open(item))
        self.open = kind

    def open_call(self, shape: ToolShape, call_id: str, caller: Caller | UnsetType = UNSET) -> None:
        """An id that another call has is none: the run gives one. ``caller``: the program that
        makes it, if one does."""
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
        self.item(item, "call")

    def add_arguments(self, text: str) -> None:
        self._say(text, (), "text")

    def close_call(self) -> None:
        self.close()

    def close(self, kept: str = "", **result: Any) -> None:
        """``kept``: what belongs to the open item, for its upstream alone. ``result``: fields that
        were found."""
        if self.open is not None:
            if kept:
                result["encrypted_content"] = kept
            self.out.append(Close(result) if result else _CLOSE)
            self.open = None

    def took(self, deltas: Iterable[Delta]) -> None:
        """Deltas that were made elsewhere."""
        for delta in deltas:
            self.out.append(delta)
            if isinstance(delta, Open):
                self.open = "reasoning" if isinstance(delta.item, Reasoning) else "message"
            elif isinstance(delta, Close):
                self.open = None
