"""Parse the stream of an upstream's Responses API into deltas. Sans-IO.

An event may identify its item by an id, by a position, or not at all. Servers may also leave out
some events. In deltas, only one item is open at a time. Text that was not streamed is taken from
the completed item.

In this module, a step is a progress event of a hosted tool, such as ``searching``.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast, get_args

import msgspec
from msgspec import UNSET, Struct

from antiphon.backends.remote.delta_builder import DeltaBuilder
from antiphon.dialects.grammar.schema_types import SchemaTypes
from antiphon.dialects.parser.json_repair import JsonRepair
from antiphon.dialects.parser.tool_call import CallBuilder, ToolShape, meant_tool
from antiphon.errors import BackendError
from antiphon.stream.deltas import Channel, Delta, Finish, FinishReason, Summary
from antiphon.stream.event_grammar import ITEM
from antiphon.stream.kinds import KINDS, OPEN_RESPONSES_KINDS
from antiphon.upstream.errors import parse_error, upstream_error
from antiphon.upstream.surrogates import SurrogateJoiner, decode_leniently
from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.response import Usage
from antiphon.wire.tags import tag_of

from .items import (
    caller_of,
    completed_tool_fields,
    logprobs_of,
    parts_of,
    read_item,
    text_fields,
    usage_of,
    whole_texts,
)

#: Assumed number of characters per token, for estimates if the upstream reports no usage.
_TOKEN_BYTES = 4
_TEXT_ITEMS = ("message", "reasoning")
#: Event type → the type of the item that it adds text to, and the channel of the text.
_TEXTS: Mapping[str, tuple[str, Channel]] = {
    tag_of(text.delta): (tag_of(cls), channel)
    for table in (KINDS, OPEN_RESPONSES_KINDS)
    for cls, kind in table.items()
    for channel, text in kind.channels.items()
}
#: Type of an item → the steps of its tool whose events have no fields except the item's position.
_PLAIN_STEPS: Mapping[str, frozenset[str]] = {
    tag_of(cls): frozenset(
        name
        for name, event in kind.progress.items()
        if {"item_id", "output_index", "sequence_number"}.issuperset(event.__struct_fields__)
    )
    for cls, kind in KINDS.items()
}


def _whole_texts(*, hosted: bool) -> Mapping[str, str]:
    """Return for each type of calls with a text, i.e. with arguments, an input or code, the type of
    the event that completes this text. ``hosted``: the types of hosted tools or the other types."""
    return {
        tag_of(cls): tag_of(kind.whole_text.done)
        for cls, kind in KINDS.items()
        if kind.whole_text is not None and kind.runs_here is hosted
    }


#: Types of the calls that the client answers.
_CALLS = frozenset(_whole_texts(hosted=False))
#: Types of hosted tools' items with a text, and of the events that complete such a text.
_TEXT_TOOLS = frozenset(_whole_texts(hosted=True))
_TEXT_ENDS = frozenset(_whole_texts(hosted=True).values())
#: Types of the events that complete the text of reasoning.
_REASONING_ENDS = frozenset(
    tag_of(table[it.Reasoning].channels["text"].done) for table in (KINDS, OPEN_RESPONSES_KINDS)
)
#: Optional fields of an event with an image preview.
_PREVIEW_FIELDS = ("size", "quality", "background", "output_format")
_PHASES = get_args(it.Phase)
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_TRUNCATED: Mapping[str, FinishReason] = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}


class _Event(Struct, gc=False):
    """An event of the stream. The class declares only the fields that the parser uses. The garbage
    collector need not track events: values from JSON contain no reference cycles."""

    type: str = ""
    output_index: int | None = None
    item_id: str | None = None
    summary_index: int | None = None
    delta: Any = None
    logprobs: list[Any] | None = None
    item: JsonObject | None = None
    annotation: JsonObject | None = None
    response: JsonObject | None = None
    error: Any = None
    code: str | None = None
    message: str | None = None
    object: str | None = None
    partial_image_b64: Any = None
    partial_image_index: Any = None
    size: Any = None
    quality: Any = None
    background: Any = None
    output_format: Any = None


_decode = msgspec.json.Decoder(_Event).decode
_T = TypeVar("_T")


class _UpstreamItem:
    """The state of one item that the upstream streams.

    ``tag``: the type of the item. ``raw``: the item's JSON so far. ``text_lengths``: channel (kind
    of text) → number of characters so far. ``steps``: names of the hosted tool's progress events
    that were already reported. ``waiting_events``: events that arrived while another item was open.

    ``summary``: the index of a summary part that has begun but has no text yet. When the first text
    of this part arrives, the parser puts a blank line before the text and sets ``summary`` to 0.
    The first part has the index 0, so its text gets no blank line.
    """

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.raw: JsonObject = {}
        self.text_lengths: dict[Channel, int] = {}
        self.steps: set[str] = set()
        self.summary = 0
        #: Whether the text of the reasoning is complete.
        self.text_ended = False
        #: Pieces of a summary part that arrive before the text of the reasoning is complete.
        self.inner_summary: list[str] = []
        self.annotation_count = 0
        self.call: CallBuilder | None = None
        #: Repairs the arguments of a call whose tool was not sent as a function.
        self.repair: JsonRepair | None = None
        self.is_open = self.is_done = False
        #: Whether the item is of a known type, so it can be sent to the client.
        self.is_shown = False
        #: State of a hosted tool in the event grammar, which says which steps may follow.
        self.state = "open"
        #: Steps that wait for the end of the item's text.
        self.waiting_steps: list[str] = []
        self.waiting_events: list[_Event] = []


class ResponsesStreamParser:
    """Parses the stream of one reply.

    ``shapes``: function name shown to the upstream → the tool, for all tools that were sent as
    functions, such as custom tools. ``origin``: the address of the upstream. The address is stored
    together with encrypted reasoning, because only the upstream that encrypted the reasoning can
    read it. ``input_tokens``: estimated number of tokens of the prompt, for upstreams that report
    no usage. ``max_output_tokens``: the requested limit. Some upstreams do not report that they cut
    off the output at this limit, so the parser compares the number of output tokens with the limit.
    """

    def __init__(
        self,
        shapes: Mapping[str, ToolShape],
        *,
        origin: str = "",
        input_tokens: int = 0,
        max_output_tokens: int | None = None,
    ) -> None:
        self._shapes = shapes
        self._origin = origin
        self._input_tokens = input_tokens
        self._max_output_tokens = max_output_tokens
        self._builder = DeltaBuilder(())
        self._items: list[_UpstreamItem] = []
        #: Items that may be incomplete. Complete items are removed from the left end.
        self._open_items: deque[_UpstreamItem] = deque()
        #: The items by their index and by their id. None is no key.
        self._by_key: dict[int | str | None, _UpstreamItem] = {}
        self._current: _UpstreamItem | None = None
        self._text_bytes = 0
        self._final_response: JsonObject | None = None
        #: Joins the halves of characters, once an event has contained one.
        self._halves: SurrogateJoiner | None = None

    def feed(self, payloads: Iterable[bytes]) -> tuple[Delta, ...]:
        """Parse the ``data`` of several server-sent events that arrived together. Return their
        deltas. Raises ``BackendError`` if an event reports an error or is unreadable."""
        for payload in payloads:
            self._read(payload)
        return self.pending_deltas()

    def pending_deltas(self) -> tuple[Delta, ...]:
        """Return the deltas that the last ``feed`` call parsed before it raised an error."""
        return self._builder.take_deltas()

    def _decode_leniently(self, payload: bytes, kind: type[_T]) -> _T:
        """Decode an event that the strict decoder refuses, for example because it contains half a
        character. Raises ``BackendError`` if it cannot be read at all."""
        try:
            event = decode_leniently(payload, kind, lambda name: name == "delta")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise BackendError("The upstream's answer cannot be read.") from None
        self._halves = self._halves or SurrogateJoiner()
        return event

    def _read(self, payload: bytes) -> None:
        try:
            event = _decode(payload)
            if event.object == "response":  # the server did not stream
                self._read_whole(msgspec.json.decode(payload))
                return
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            event = self._decode_leniently(payload, _Event)
        if event.object == "response":
            self._read_whole(self._decode_leniently(payload, JsonObject))
        elif event.type == "error" or (event.error and not event.type):
            fields = event.error or {"message": event.message, "code": event.code}
            raise upstream_error(500, parse_error(fields))
        elif event.type in _ENDS:
            self._final_response = event.response or {}
            if not self._items:  # no item was streamed
                self._read_whole(self._final_response)
        else:
            self._dispatch(event)

    def finish(self, *, done: bool) -> tuple[Delta, ...]:
        """Return the remaining deltas when the stream has ended. Raises ``BackendError`` if the
        stream is incomplete or the response failed.

        ``done``: ignored. ``StreamParser`` requires this parameter, but a stream of the Responses
        API ends with an event such as ``response.completed`` and not with ``[DONE]``.
        """
        response = self._final_response
        if response is None:
            raise BackendError("The upstream's answer broke off.")
        status = response.get("status")
        if status in ("failed", "cancelled"):
            raise upstream_error(500, parse_error(response))
        usage = usage_of(
            response.get("usage"), self._input_tokens, -(-self._text_bytes // _TOKEN_BYTES)
        )
        reason = self._finish_reason(response, usage)
        self._end_items(is_cut=reason != "stop")
        return (*self._builder.take_deltas(), Finish(reason, usage))

    # --- items in turn ----------------------------------------------------------------------------

    def _dispatch(self, event: _Event) -> None:
        item_state = self._find_item(event)
        if item_state is None or item_state.is_done:
            return
        if (
            self._current is not None
            and self._current is not item_state
            and not self._current.is_done
        ):
            if self._must_wait(item_state):
                item_state.waiting_events.append(event)
                return
            self._close(self._current)  # the upstream sent no end of the current item
        self._current = item_state
        self._process(item_state, event)
        while self._current is not None and self._current.is_done:
            while self._open_items and self._open_items[0].is_done:
                self._open_items.popleft()
            next_item = self._open_items[0] if self._open_items else None
            self._current = None
            if next_item is None or not next_item.waiting_events:
                return
            waiting_events, next_item.waiting_events = next_item.waiting_events, []
            for each in waiting_events:
                self._dispatch(each)

    def _must_wait(self, item_state: _UpstreamItem) -> bool:
        """Return whether the item's events must wait until the current item is complete.

        An upstream may stream several tool calls and items of hosted tools in parallel, but in
        deltas, only one item is open at a time. So if both items are of these types, the events
        must wait.

        An upstream does not stream a message or reasoning in parallel with other items. So if one
        of the two items is a message or reasoning, the current item is already complete, even if
        the upstream sent no end of it. The events need not wait.
        """
        assert self._current is not None
        return item_state.tag not in _TEXT_ITEMS and self._current.tag not in _TEXT_ITEMS

    def _find_item(self, event: _Event) -> _UpstreamItem | None:
        """Return the item that an event belongs to. If the item is new, create its state. Return
        None if the item is new and the event does not contain the item's type."""
        index, name = event.output_index, event.item_id or (event.item or {}).get("id")
        index = None if index is None or index < 0 else index
        name = name if isinstance(name, str) else None
        by_index, by_name = self._by_key.get(index), self._by_key.get(name)
        item_state = by_index or by_name
        if item_state is None:
            has_key = index is not None or name is not None
            if not has_key and self._current is not None and not event.item:
                return self._current
            text = _TEXTS.get(event.type)
            tag = (event.item or {}).get("type") or (text[0] if text else None)
            if not isinstance(tag, str):
                return None
            item_state = _UpstreamItem(tag)
            self._items.append(item_state)
            self._open_items.append(item_state)
        if by_index is None and index is not None:
            self._by_key[index] = item_state
        if by_name is None and name is not None:
            self._by_key[name] = item_state
        return item_state

    def _process(self, item_state: _UpstreamItem, event: _Event) -> None:
        if event.item is not None:
            # An item keeps the type and the call id with which it was opened.
            item_state.raw = {**item_state.raw, **event.item, "type": item_state.tag}
        if not item_state.is_open:
            self._open(item_state)
        if not item_state.is_shown:
            item_state.is_done |= event.type == "response.output_item.done"
        elif (text := _TEXTS.get(event.type)) is not None:
            self._add_delta(item_state, event, text[1])
        elif event.type == "response.output_text.annotation.added":
            self._annotate(item_state, event.annotation)
        elif event.type == "response.reasoning_summary_part.added" and event.summary_index:
            item_state.summary = event.summary_index
        elif event.type in _REASONING_ENDS:
            item_state.text_ended = True
        elif event.type == "response.reasoning_summary_text.done":
            self._add_inner_summary(item_state)
        elif event.type == "response.output_item.done":
            self._close(item_state)
        else:
            self._step(item_state, event)

    def _open(self, item_state: _UpstreamItem) -> None:
        item_state.is_open = item_state.is_shown = True
        builder, raw = self._builder, item_state.raw
        if item_state.tag == "message":
            phase = cast(it.Phase, raw["phase"]) if raw.get("phase") in _PHASES else UNSET
            shell = it.Message(role="assistant", content=(), phase=phase)
            builder.open_item(shell, "message")
        elif item_state.tag == "reasoning":
            builder.open_text_item("reasoning")
        elif item_state.tag in _CALLS:
            self._start_call(item_state)
        elif (item := read_item(raw)) is not None:
            without_text = {field: type(getattr(item, field))() for field in text_fields(item)}
            builder.open_item(msgspec.structs.replace(item, id="", **without_text), "other")
        else:
            item_state.is_shown = False

    def _start_call(self, item_state: _UpstreamItem) -> None:
        raw = item_state.raw
        name, call_id = str(raw.get("name") or ""), str(raw.get("call_id") or "")
        if meant_tool(name, self._shapes) and item_state.tag == "function_call":
            item_state.call = CallBuilder(self._builder, self._shapes, is_bare=False)
            item_state.call.name, item_state.call.call_id = name, call_id
            item_state.call.start()
            return
        shape = ToolShape(
            wire_name=name,
            namespace=str(raw.get("namespace") or "") or None,
            custom=item_state.tag == "custom_tool_call",
        )
        self._builder.open_call(shape, call_id, caller_of(raw))
        if not shape.custom:
            item_state.repair = JsonRepair(SchemaTypes({}))

    def _add_delta(self, item_state: _UpstreamItem, event: _Event, channel: Channel) -> None:
        text = event.delta
        if not isinstance(text, str) or not text:
            return
        if (
            channel == "summary"
            and item_state.tag == "reasoning"
            and item_state.text_lengths.get("text")
            and not item_state.text_ended
        ):
            item_state.inner_summary.append(text)
            self._text_bytes += len(text)
            return
        if channel == "summary" and item_state.summary:
            text, item_state.summary = f"\n\n{text}", 0  # in deltas, the summary has one part
        self._add_text(
            item_state, text, channel, logprobs_of(event.logprobs) if event.logprobs else ()
        )

    def _add_text(
        self,
        item_state: _UpstreamItem,
        text: str,
        channel: Channel,
        logprobs: tuple[it.Logprob, ...] = (),
    ) -> None:
        if self._halves is not None:
            text = self._halves.join((item_state, channel), text)
            if not text:
                return
        self._text_bytes += len(text)
        item_state.text_lengths[channel] = item_state.text_lengths.get(channel, 0) + len(text)
        if item_state.call is not None:
            item_state.call.add_json_arguments(text)
        elif item_state.tag in _TEXT_ITEMS:
            kind: Any = item_state.tag
            if self._builder.open != kind:
                self._builder.open_text_item(kind)
            self._builder.text(kind, text, logprobs, channel)
        elif item_state.repair is not None:
            self._builder.add_arguments(item_state.repair.read(text))
        elif item_state.state == "open":
            self._builder.add_arguments(text)

    def _add_inner_summary(self, item_state: _UpstreamItem) -> None:
        """Add a ``Summary`` delta with the buffered part of the summary. A part of a summary is
        buffered if it arrives before the text of the reasoning is complete."""
        text = "".join(item_state.inner_summary)
        item_state.inner_summary.clear()
        if text and self._builder.open == "reasoning":
            item_state.text_lengths["summary"] = 1
            self._builder.add(Summary(text))

    def _annotate(self, item_state: _UpstreamItem, raw: JsonObject | None) -> None:
        try:
            annotation = msgspec.convert(raw, it.Annotation)
        except msgspec.ValidationError:
            return  # an unknown kind of annotation
        if item_state.text_lengths.get("text"):
            item_state.annotation_count += 1
            self._builder.annotate(annotation)

    def _step(self, item_state: _UpstreamItem, event: _Event) -> None:
        """Handle a progress event of a hosted tool, for example
        ``response.web_search_call.searching``."""
        name = event.type.removeprefix(f"response.{item_state.tag}.")
        if name == "partial_image":
            self._preview(item_state, event)
            return
        if event.type in _TEXT_ENDS and item_state.text_lengths:
            self._end_text(item_state)
        elif name in _PLAIN_STEPS.get(item_state.tag, ()):
            self._take_step(item_state, name)

    def _take_step(self, item_state: _UpstreamItem, name: str) -> None:
        """Report a progress event of a hosted tool. ``name``: the last part of the event type, such
        as ``searching``.

        The event is reported only if Antiphon's rules for the order of events allow it now. If the
        tool's input text is not complete yet, the event waits until the text is complete. Any other
        event that is not allowed is dropped.
        """
        edge = ITEM[item_state.tag].get((item_state.state, f"{item_state.tag}.{name}"))
        if edge is None:
            if item_state.state == "open" and item_state.tag in _TEXT_TOOLS:
                item_state.waiting_steps.append(name)
        elif name not in item_state.steps:
            item_state.steps.add(name)
            item_state.state = edge.to
            self._builder.progress(name)

    def _end_text(self, item_state: _UpstreamItem) -> None:
        """Mark the input text of a hosted tool as complete, and report the tool's progress events
        that waited for the end of the text."""
        if item_state.tag in _TEXT_TOOLS and item_state.state == "open":
            item_state.state = "text complete"
            steps, item_state.waiting_steps = item_state.waiting_steps, []
            for name in steps:
                self._take_step(item_state, name)

    def _preview(self, item_state: _UpstreamItem, event: _Event) -> None:
        """Emit a progress event with a preview of an image that the upstream generates."""
        image, index = event.partial_image_b64, event.partial_image_index
        is_legal = (item_state.state, event.type.removeprefix("response.")) in ITEM.get(
            item_state.tag, {}
        )
        if not is_legal or not isinstance(image, str) or not isinstance(index, int):
            return
        values = {name: getattr(event, name) for name in _PREVIEW_FIELDS}
        fields: JsonObject = {n: each for n, each in values.items() if isinstance(each, str)}
        fields |= {"partial_image_b64": image, "partial_image_index": index}
        self._builder.progress("partial_image", fields)

    # --- completed items --------------------------------------------------------------------------

    def _close(self, item_state: _UpstreamItem) -> None:
        item_state.is_done = True
        raw = item_state.raw
        self._add_inner_summary(item_state)
        self._end_halves(item_state)
        missing = [
            (channel, text)
            for channel, text in whole_texts(raw)
            if not item_state.text_lengths.get(channel)
        ]
        for channel, text in missing:
            if channel == "summary" and item_state.text_lengths.get("text"):
                item_state.inner_summary.append(text)
                self._add_inner_summary(item_state)
            else:
                self._add_text(item_state, text, channel)
        self._end_text(item_state)
        if item_state.tag == "message" and not item_state.annotation_count:
            for part in parts_of(raw.get("content")):
                for annotation in parts_of(part.get("annotations")):
                    self._annotate(item_state, annotation)
        if raw.get("status") == "incomplete" and self._builder.open != "other":
            return  # the item stays open: the end of the stream tells why it is incomplete
        if item_state.call is not None or item_state.repair is not None:
            self._end_call(item_state)
        elif item_state.tag == "reasoning" and raw.get("encrypted_content") and self._origin:
            sealed = {"id": raw.get("id"), "encrypted_content": raw["encrypted_content"]}
            self._builder.close(f"{self._origin}\n{json.dumps(sealed)}")
        elif self._builder.open == "other":
            self._builder.close(**completed_tool_fields(raw))
        else:
            self._builder.close()

    def _end_halves(self, item_state: _UpstreamItem) -> None:
        """Add U+FFFD for each half of a character whose other half never arrived."""
        if self._halves is not None:
            for channel in list(item_state.text_lengths):
                self._add_text(item_state, self._halves.finish((item_state, channel)), channel)

    def _end_call(self, item_state: _UpstreamItem) -> None:
        if item_state.call is not None:
            item_state.call.finish()
        elif item_state.repair is not None:
            self._builder.add_arguments(item_state.repair.finish())
            self._builder.close_call(is_complete=not item_state.repair.is_broken)

    def _end_items(self, *, is_cut: bool) -> None:
        """Close the open items at the end of the stream. ``is_cut``: whether the reply was cut off.
        If so, the last item of the reply stays open."""
        rest = [item_state for item_state in self._items if not item_state.is_done]
        for item_state in rest:
            waiting_events, item_state.waiting_events = item_state.waiting_events, []
            for event in waiting_events:
                self._process(item_state, event)
            if not item_state.is_done and not (is_cut and item_state is rest[-1]):
                self._close(item_state)
        if not is_cut:
            self._builder.close()

    def _read_whole(self, response: JsonObject) -> None:
        self._final_response = response
        for item in parts_of(response.get("output")):
            self._read_whole_item(item)

    def _read_whole_item(self, item: JsonObject) -> None:
        item_state = _UpstreamItem(str(item.get("type") or ""))
        self._current = item_state
        self._process(item_state, _Event(type="response.output_item.done", item=item))

    # --- the end ----------------------------------------------------------------------------------

    def _finish_reason(self, response: JsonObject, usage: Usage) -> FinishReason:
        details = response.get("incomplete_details")
        cause = details.get("reason") if isinstance(details, Mapping) else None
        if isinstance(cause, str):
            return _TRUNCATED.get(cause, "length")
        if response.get("status") == "incomplete":
            return "length"
        # llama-server reports a truncated reply as completed
        is_cut = (
            self._max_output_tokens is not None and usage.output_tokens >= self._max_output_tokens
        )
        return "length" if is_cut else "stop"
