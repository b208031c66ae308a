"""The stream of the Chat Completions API: events of ours become chunks.

Every chunk is one choice's delta: the role first, then thinking, text and calls, then why it ends.
It knows neither sockets nor models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire.response import Response

from .chat_response import FinishReason, Logprobs, answer_id, finish_reason
from .usage import Usage, usage

__all__ = ["Call", "Chunk", "ChunkChoice", "Chunks", "Delta"]

_encode = msgspec.json.Encoder().encode
_Thought = ev.ReasoningTextDelta | ev.ReasoningDelta | ev.ReasoningSummaryTextDelta


class Call(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a call: what it is comes first, then its arguments or its input."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: dict[str, str] | UnsetType = UNSET
    custom: dict[str, str] | UnsetType = UNSET


class Delta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[Call, ...] | UnsetType = UNSET
    function_call: dict[str, str] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    delta: Delta
    index: int = 0
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None


class Chunk(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET


class Chunks:
    """The chunks of one choice. ``first``: the response whose id and model the answer has.
    ``include_usage``: one without choices tells what was used, and the others say that they do
    not."""

    def __init__(
        self, first: Response, index: int = 0, *, include_usage: bool, legacy: bool
    ) -> None:
        self._head: dict[str, Any] = {
            "id": answer_id(first.id),
            "created": first.created_at,
            "model": first.model,
        }
        self._index = index
        self._usage = None if include_usage else UNSET
        self._legacy = legacy
        #: Calls by the index of their item.
        self._calls: dict[int, int] = {}
        #: The item of the last thinking that was told; whether in its own words.
        self._thinking: int | None = None
        self._is_raw = False

    def frames(self, events: Iterable[ev.Event]) -> bytes:
        """What these events are, as bytes of a ``text/event-stream``; perhaps nothing."""
        return b"".join(frame for event in events for frame in self._frames(event))

    def last(self, responses: Sequence[Response]) -> bytes:
        """What was used by all of them, where that was asked for."""
        if self._usage is not None:
            return b""
        used = usage(responses, len(responses))
        return _frame(Chunk(**self._head, choices=(), usage=used))

    def _frames(self, event: ev.Event) -> Iterator[bytes]:
        if isinstance(event, ev.OutputTextDelta):  # nearly all are
            logprobs = Logprobs(content=event.logprobs) if event.logprobs else None
            yield self._chunk(Delta(content=event.delta), logprobs)
        elif isinstance(event, ev.Keepalive):
            yield b": keepalive\n\n"  # there is no chunk that says nothing
        elif isinstance(event, ev.Error):
            yield _frame({"error": event.error})
        elif isinstance(event, ev.Completed | ev.Incomplete):
            reason = finish_reason(event.response, legacy=self._legacy)
            yield self._chunk(Delta(), finish=reason)
        elif (read := _DELTAS.get(type(event))) is not None:
            delta = read(self, event)
            if delta is not None:
                yield self._chunk(delta)

    def _chunk(
        self, delta: Delta, logprobs: Logprobs | None = None, finish: FinishReason | None = None
    ) -> bytes:
        choice = ChunkChoice(
            index=self._index, delta=delta, logprobs=logprobs, finish_reason=finish
        )
        return _frame(Chunk(**self._head, choices=(choice,), usage=self._usage))

    def _begun(self, event: ev.OutputItemAdded) -> Delta | None:
        """A call says what it is."""
        item = event.item
        if not isinstance(item, it.FunctionCall | it.CustomToolCall):
            return None
        if self._legacy:
            return Delta(function_call={"name": item.name, "arguments": ""})
        index = self._calls[event.output_index] = len(self._calls)
        if isinstance(item, it.CustomToolCall):
            said = {"name": item.name, "input": ""}
            call = Call(index=index, id=item.call_id, type="custom", custom=said)
        else:
            said = {"name": item.name, "arguments": ""}
            call = Call(index=index, id=item.call_id, type="function", function=said)
        return Delta(tool_calls=(call,))

    def _thought(self, event: _Thought) -> Delta:
        """Thoughts of several items stand on lines of their own."""
        is_other = self._thinking not in (None, event.output_index)
        self._thinking, self._is_raw = event.output_index, True
        return Delta(reasoning_content=f"\n{event.delta}" if is_other else event.delta)

    def _summed_up(self, event: ev.ReasoningSummaryTextDelta) -> Delta | None:
        """Told where the thinking itself was not."""
        if self._is_raw and self._thinking == event.output_index:
            return None
        delta = self._thought(event)
        self._is_raw = False
        return delta

    def _argued(self, event: ev.FunctionCallArgumentsDelta) -> Delta:
        said = {"arguments": event.delta}
        if self._legacy:
            return Delta(function_call=said)
        return Delta(tool_calls=(Call(index=self._calls[event.output_index], function=said),))

    def _typed(self, event: ev.CustomToolCallInputDelta) -> Delta:
        call = Call(index=self._calls[event.output_index], custom={"input": event.delta})
        return Delta(tool_calls=(call,))


def _frame(value: Any) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


#: Event → the delta it is. The other events say nothing that a chunk could say.
_DELTAS: Mapping[type[ev.Event], Callable[[Chunks, Any], Delta | None]] = {
    ev.Created: lambda chunks, event: Delta(role="assistant", content=""),
    ev.RefusalDelta: lambda chunks, event: Delta(refusal=event.delta),
    ev.ReasoningTextDelta: Chunks._thought,
    ev.ReasoningDelta: Chunks._thought,
    ev.ReasoningSummaryTextDelta: Chunks._summed_up,
    ev.OutputItemAdded: Chunks._begun,
    ev.FunctionCallArgumentsDelta: Chunks._argued,
    ev.CustomToolCallInputDelta: Chunks._typed,
}
