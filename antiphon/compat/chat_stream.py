"""Translate events to the stream of the Chat Completions API.

Each chunk holds a delta of one choice. The first chunk of a choice has the role. Chunks with
reasoning, text and tool calls follow. The last chunk has the finish reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.response import OmittedPart, Response

from .chat_response import (
    ChatFinishReason,
    ChatLogprobs,
    ChatModeration,
    chat_completion_id,
    chat_moderation,
    finish_reason,
)
from .translated_request import ChoiceStream, sse_frame
from .usage import CompletionUsage, total_usage

_ReasoningEvent = ev.ReasoningTextDelta | ev.ReasoningDelta | ev.ReasoningSummaryTextDelta


class ChatCallDelta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a tool call. The first piece has the id of the call and the name of the tool.
    Later pieces have parts of the arguments or of the input."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: dict[str, str] | UnsetType = UNSET
    custom: dict[str, str] | UnsetType = UNSET


class ChatDelta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ChatCallDelta, ...] | UnsetType = UNSET
    function_call: dict[str, str] | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True, kw_only=True):
    delta: ChatDelta
    index: int = 0
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None


class ChatChunk(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: CompletionUsage | UnsetType | None = UNSET
    moderation: ChatModeration | UnsetType = UNSET
    omitted_parts: tuple[OmittedPart, ...] | UnsetType = UNSET


class ChatStream(ChoiceStream):
    """Encodes the events of one response as the chunks of one choice.

    ``first``: the response of the first choice, which determines the id and the model of the
    answer. ``include_usage``: whether the stream ends with a chunk that has the usage and no
    choices. If so, ``usage`` is null in all other chunks. ``omitted_parts``: the parts of the
    request that the model cannot read. The chunk with the finish reason has them.
    """

    def __init__(
        self,
        first: Response,
        index: int = 0,
        *,
        include_usage: bool,
        legacy: bool,
        omitted_parts: Sequence[OmittedPart] = (),
    ) -> None:
        self._head: JsonObject = {
            "id": chat_completion_id(first.id),
            "created": first.created_at,
            "model": first.model,
        }
        self._index = index
        self._usage = None if include_usage else UNSET
        self._legacy = legacy
        self._omitted_parts = tuple(omitted_parts) or UNSET
        #: Output index of a call's item → index of the call in ``tool_calls``.
        self._calls: dict[int, int] = {}
        #: Output index of the last streamed reasoning item, and whether its full text was streamed.
        #: The summary of such an item is not streamed.
        self._reasoning_index: int | None = None
        self._has_raw_text = False

    def usage_frame(self, responses: Sequence[Response]) -> bytes:
        """Return the last chunks as frames of a ``text/event-stream``: one with the moderation, if
        there is one, and one with the total usage of ``responses``, if the request sets
        ``include_usage``."""
        frames = b""
        if (moderation := chat_moderation(responses)) is not UNSET:
            frames += sse_frame(
                ChatChunk(**self._head, choices=(), usage=self._usage, moderation=moderation)
            )
        if self._usage is None:
            used = total_usage(responses, len(responses))
            frames += sse_frame(ChatChunk(**self._head, choices=(), usage=used))
        return frames

    def _frames(self, event: ev.Event) -> Iterator[bytes]:
        if isinstance(event, ev.OutputTextDelta):  # the most frequent event first
            logprobs = ChatLogprobs(content=event.logprobs) if event.logprobs else None
            yield self._chunk(ChatDelta(content=event.delta), logprobs)
        elif isinstance(event, ev.Keepalive):
            yield b": keepalive\n\n"  # the API has no empty chunk
        elif isinstance(event, ev.Error):
            yield sse_frame({"error": event.error})
        elif isinstance(event, ev.Completed | ev.Incomplete):
            reason = finish_reason(event.response, legacy=self._legacy)
            yield self._chunk(ChatDelta(), finish=reason)
        elif (read := _DELTAS.get(type(event))) is not None:
            delta = read(self, event)
            if delta is not None:
                yield self._chunk(delta)

    def _chunk(
        self,
        delta: ChatDelta,
        logprobs: ChatLogprobs | None = None,
        finish: ChatFinishReason | None = None,
    ) -> bytes:
        choice = ChatChunkChoice(
            index=self._index, delta=delta, logprobs=logprobs, finish_reason=finish
        )
        omitted = UNSET if finish is None else self._omitted_parts
        return sse_frame(
            ChatChunk(**self._head, choices=(choice,), usage=self._usage, omitted_parts=omitted)
        )

    def _item_added(self, event: ev.OutputItemAdded) -> ChatDelta | None:
        """Return the delta with the id and the name of a call. Returns None for an item that is no
        call."""
        item = event.item
        if not it.is_model_call(item):
            return None
        if self._legacy:
            return ChatDelta(function_call={"name": item.name, "arguments": ""})
        index = self._calls[event.output_index] = len(self._calls)
        if isinstance(item, it.CustomToolCall):
            fields = {"name": item.name, "input": ""}
            call = ChatCallDelta(index=index, id=item.call_id, type="custom", custom=fields)
        else:
            fields = {"name": item.name, "arguments": ""}
            call = ChatCallDelta(index=index, id=item.call_id, type="function", function=fields)
        return ChatDelta(tool_calls=(call,))

    def _reasoning_delta(self, event: _ReasoningEvent) -> ChatDelta:
        """Return the delta with a piece of reasoning. A newline separates the texts of different
        items."""
        is_other = self._reasoning_index not in (None, event.output_index)
        self._reasoning_index, self._has_raw_text = event.output_index, True
        return ChatDelta(reasoning_content=f"\n{event.delta}" if is_other else event.delta)

    def _summary_delta(self, event: ev.ReasoningSummaryTextDelta) -> ChatDelta | None:
        """Return the delta with a piece of a reasoning summary. Returns None if the full reasoning
        text of the item was already streamed."""
        if self._has_raw_text and self._reasoning_index == event.output_index:
            return None
        delta = self._reasoning_delta(event)
        self._has_raw_text = False
        return delta

    def _arguments_delta(self, event: ev.FunctionCallArgumentsDelta) -> ChatDelta:
        fields = {"arguments": event.delta}
        if self._legacy:
            return ChatDelta(function_call=fields)
        return ChatDelta(
            tool_calls=(ChatCallDelta(index=self._calls[event.output_index], function=fields),)
        )

    def _input_delta(self, event: ev.CustomToolCallInputDelta) -> ChatDelta:
        call = ChatCallDelta(index=self._calls[event.output_index], custom={"input": event.delta})
        return ChatDelta(tool_calls=(call,))


#: Type of an event → function that returns the delta of such an event. Other events produce no
#: chunk.
_DELTAS: Mapping[type[ev.Event], Callable[[ChatStream, Any], ChatDelta | None]] = {
    ev.Created: lambda chunks, event: ChatDelta(role="assistant", content=""),
    ev.RefusalDelta: lambda chunks, event: ChatDelta(refusal=event.delta),
    ev.ReasoningTextDelta: ChatStream._reasoning_delta,
    ev.ReasoningDelta: ChatStream._reasoning_delta,
    ev.ReasoningSummaryTextDelta: ChatStream._summary_delta,
    ev.OutputItemAdded: ChatStream._item_added,
    ev.FunctionCallArgumentsDelta: ChatStream._arguments_delta,
    ev.CustomToolCallInputDelta: ChatStream._input_delta,
}
