"""The stream of a Responses server becomes deltas, however its events are numbered. Sans-IO.

Servers differ in what they number (ids, positions, neither) and in what they leave out; items come
one after the other here, and what was not streamed is taken from the item when it is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast, get_args

import msgspec
from msgspec import UNSET, Struct

from antiphon.backends.remote.delta_builder import DeltaBuilder
from antiphon.dialects.parser.tool_call import CallBuilder, ToolShape
from antiphon.errors import BackendError
from antiphon.stream.deltas import Annotate, Channel, Delta, Finish, FinishReason, Progress
from antiphon.stream.kinds import KINDS, OPEN_RESPONSES_KINDS
from antiphon.upstream.errors import complaint, refused
from antiphon.wire import items as it
from antiphon.wire.response import Usage

from .items import (
    caller_of,
    found,
    logprobs_of,
    parts_of,
    read_item,
    text_fields,
    usage_of,
    whole_texts,
)

__all__ = ["ResponsesStreamParser"]

Json = dict[str, Any]
#: Bytes of text that are taken for one token where nobody counts them.
_TOKEN_BYTES = 4
_CALLS = ("function_call", "custom_tool_call")
_SAID = ("message", "reasoning")
#: Event → the kind of item it writes into, and into which of its texts.
_TEXTS: Mapping[str, tuple[str, Channel]] = {
    str(text.delta.__struct_config__.tag): (str(cls.__struct_config__.tag), channel)
    for table in (KINDS, OPEN_RESPONSES_KINDS)
    for cls, kind in table.items()
    for channel, text in kind.channels.items()
}
#: What a preview of an image tells besides.
_OF_PREVIEWS = ("size", "quality", "background", "output_format")
_PHASES = get_args(it.Phase)
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_CUT: Mapping[str, FinishReason] = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}


class _Event(Struct):
    """What is read of an event."""

    type: str = ""
    output_index: int | None = None
    item_id: str | None = None
    summary_index: int | None = None
    delta: Any = None
    logprobs: list[Any] | None = None
    item: Json | None = None
    annotation: Json | None = None
    response: Json | None = None
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


class _Told:
    """One item of the upstream. ``waiting``: events that came before it was its turn."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.raw: Json = {}
        self.said: dict[Channel, int] = {}
        self.steps: set[str] = set()
        self.summary = 0
        self.annotated = 0
        self.call: CallBuilder | None = None
        self.opened = self.done = False
        self.waiting: list[_Event] = []


class ResponsesStreamParser:
    """One reply. ``shapes``: the functions the upstream was shown → what they are on the wire;
    those it was shown as they are need none. ``most``: the limit of tokens, for upstreams that do
    not say that it cut the reply. ``origin``: marks what is kept for this upstream alone."""

    def __init__(
        self,
        shapes: Mapping[str, ToolShape],
        *,
        origin: str = "",
        given: int = 0,
        most: int | None = None,
    ) -> None:
        self._shapes = shapes
        self._origin = origin
        self._given = given
        self._most = most
        self._written = DeltaBuilder(())
        self._items: list[_Told] = []
        self._by_key: dict[int | str, _Told] = {}
        self._current: _Told | None = None
        self._length = 0
        self._last: Json | None = None

    def feed(self, payloads: Iterable[bytes]) -> tuple[Delta, ...]:
        """What payloads that came together add. Raises ``BackendError`` for an error, or what
        cannot be read."""
        for payload in payloads:
            self._read(payload)
        return self.taken()

    def taken(self) -> tuple[Delta, ...]:
        """What has been read and not been given out: what came before an error."""
        return self._written.take()

    def _read(self, payload: bytes) -> None:
        try:
            event = _decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise BackendError("The upstream's answer cannot be read.") from None
        if event.object == "response":  # it was not streamed after all
            self._whole(msgspec.json.decode(payload))
        elif event.type == "error" or (event.error and not event.type):
            told = event.error or {"message": event.message, "code": event.code}
            raise refused(500, complaint(told))
        elif event.type in _ENDS:
            self._last = event.response or {}
            if not self._items:  # nothing was told of before
                self._whole(self._last)
        else:
            self._take(event)

    def finish(self, *, done: bool) -> tuple[Delta, ...]:
        """The end. Raises ``BackendError`` for a stream that broke off, and a reply that failed."""
        response = self._last
        if response is None:
            raise BackendError("The upstream's answer broke off.")
        status = response.get("status")
        if status in ("failed", "cancelled"):
            raise refused(500, complaint(response))
        usage = usage_of(response.get("usage"), self._given, -(-self._length // _TOKEN_BYTES))
        reason = self._reason(response, usage)
        self._leave(is_cut=reason != "stop")
        return (*self._written.take(), Finish(reason, usage))

    # --- items in turn ----------------------------------------------------------------------------

    def _take(self, event: _Event) -> None:
        told = self._told(event)
        if told is None or told.done:
            return
        if self._current is not None and self._current is not told and not self._current.done:
            if self._in_turn(told):
                told.waiting.append(event)
                return
            self._close(self._current)  # it never said that it was done
        self._current = told
        self._process(told, event)
        while self._current is not None and self._current.done:
            following = next((each for each in self._items if not each.done), None)
            self._current = None
            if following is None or not following.waiting:
                return
            waiting, following.waiting = following.waiting, []
            for each in waiting:
                self._take(each)

    def _in_turn(self, told: _Told) -> bool:
        """Calls may be told of side by side, and tools at work; what is said, one after the
        other."""
        assert self._current is not None
        return told.tag not in _SAID and self._current.tag not in _SAID

    def _told(self, event: _Event) -> _Told | None:
        """The item that an event speaks of; a new one where it is the first to do so."""
        name = event.item_id or (event.item or {}).get("id")
        index = event.output_index
        keys: list[int | str] = [] if index is None or index < 0 else [index]
        if isinstance(name, str):
            keys.append(name)
        found = next((self._by_key[key] for key in keys if key in self._by_key), None)
        text = _TEXTS.get(event.type)
        if found is None:
            if not keys and self._current is not None and not event.item:
                return self._current
            tag = (event.item or {}).get("type") or (text[0] if text else None)
            if not isinstance(tag, str):
                return None
            found = _Told(tag)
            self._items.append(found)
        for key in keys:
            self._by_key.setdefault(key, found)
        return found

    def _process(self, told: _Told, event: _Event) -> None:
        if event.item is not None:
            told.raw = {**told.raw, **event.item}
        if not told.opened:
            self._open(told)
        if (text := _TEXTS.get(event.type)) is not None:
            self._text(told, event, text[1])
        elif event.type == "response.output_text.annotation.added":
            self._annotate(told, event.annotation)
        elif event.type == "response.reasoning_summary_part.added" and event.summary_index:
            told.summary = event.summary_index
        elif event.type == "response.output_item.done":
            self._close(told)
        else:
            self._step(told, event)

    def _open(self, told: _Told) -> None:
        told.opened = True
        written, raw = self._written, told.raw
        if told.tag == "message":
            phase = cast(it.Phase, raw["phase"]) if raw.get("phase") in _PHASES else UNSET
            shell = it.Message(role="assistant", content=(), phase=phase)
            written.item(shell, "message")
        elif told.tag == "reasoning":
            written.begin("reasoning")
        elif told.tag in _CALLS:
            self._begin_call(told)
        elif (item := read_item(raw)) is not None:
            emptied = {field: type(getattr(item, field))() for field in text_fields(item)}
            written.item(msgspec.structs.replace(item, id="", **emptied), "other")

    def _begin_call(self, told: _Told) -> None:
        raw = told.raw
        name, call_id = str(raw.get("name") or ""), str(raw.get("call_id") or "")
        if name in self._shapes and told.tag == "function_call":
            told.call = CallBuilder(self._written, self._shapes, is_bare=False)
            told.call.name, told.call.call_id = name, call_id
            told.call.start()
            return
        shape = ToolShape(
            wire_name=name,
            namespace=str(raw.get("namespace") or "") or None,
            custom=told.tag == "custom_tool_call",
        )
        self._written.open_call(shape, call_id, caller_of(raw))

    def _text(self, told: _Told, event: _Event, channel: Channel) -> None:
        text = event.delta
        if not isinstance(text, str) or not text:
            return
        if channel == "summary" and told.summary:
            text, told.summary = f"\n\n{text}", 0  # parts of a summary are one here
        self._say(told, text, channel, logprobs_of(event.logprobs) if event.logprobs else ())

    def _say(
        self, told: _Told, text: str, channel: Channel, logprobs: tuple[it.Logprob, ...] = ()
    ) -> None:
        self._length += len(text)
        told.said[channel] = told.said.get(channel, 0) + len(text)
        if told.call is not None:
            told.call.add_json_arguments(text)
        elif told.tag in _SAID:
            kind = cast(Any, told.tag)
            if self._written.open != kind:
                self._written.begin(kind)
            self._written.text(kind, text, logprobs, channel)
        elif self._written.open is not None:
            self._written.add_arguments(text)

    def _annotate(self, told: _Told, raw: Json | None) -> None:
        try:
            annotation = msgspec.convert(raw, it.Annotation)
        except msgspec.ValidationError:
            return  # of a kind that nobody here knows
        if told.said.get("text"):
            told.annotated += 1
            self._written.out.append(Annotate(annotation))

    def _step(self, told: _Told, event: _Event) -> None:
        """A step of a hosted tool: ``response.web_search_call.searching``."""
        name = event.type.removeprefix(f"response.{told.tag}.")
        if name == "partial_image":
            self._preview(told, event)
            return
        kind = next(
            (kind for cls, kind in KINDS.items() if cls.__struct_config__.tag == told.tag), None
        )
        if kind is not None and name in kind.progress and name not in told.steps:
            told.steps.add(name)
            self._written.out.append(Progress(name))

    def _preview(self, told: _Told, event: _Event) -> None:
        """Of an image that the upstream is making."""
        image, index = event.partial_image_b64, event.partial_image_index
        is_making = told.steps & {"generating", "completed"} == {"generating"}
        if not is_making or not isinstance(image, str) or not isinstance(index, int):
            return
        given = {name: getattr(event, name) for name in _OF_PREVIEWS}
        fields: dict[str, Any] = {n: each for n, each in given.items() if isinstance(each, str)}
        fields |= {"partial_image_b64": image, "partial_image_index": index}
        self._written.out.append(Progress("partial_image", fields=fields))

    # --- what is done -----------------------------------------------------------------------------

    def _close(self, told: _Told) -> None:
        told.done = True
        raw = told.raw
        for channel, text in whole_texts(raw):
            if not told.said.get(channel):
                self._say(told, text, channel)
        if told.tag == "message" and not told.annotated:
            for part in parts_of(raw.get("content")):
                for annotation in parts_of(part.get("annotations")):
                    self._annotate(told, annotation)
        if raw.get("status") == "incomplete" and self._written.open != "other":
            return  # it stays open, for the end to say why
        if told.call is not None:
            told.call.finish()
        elif told.tag == "reasoning" and raw.get("encrypted_content") and self._origin:
            kept = {"id": raw.get("id"), "encrypted_content": raw["encrypted_content"]}
            self._written.close(f"{self._origin}\n{json.dumps(kept)}")
        elif self._written.open == "other":
            self._written.close(**found(raw))
        else:
            self._written.close()

    def _leave(self, *, is_cut: bool) -> None:
        """The stream is over: what has not ended by itself ends now; what was cut stays open."""
        rest = [told for told in self._items if not told.done]
        for told in rest:
            waiting, told.waiting = told.waiting, []
            for event in waiting:
                self._process(told, event)
            if not told.done and not (is_cut and told is rest[-1]):
                self._close(told)
        if not is_cut:
            self._written.close()

    def _whole(self, response: Json) -> None:
        self._last = response
        for item in parts_of(response.get("output")):
            self._whole_item(item)

    def _whole_item(self, item: Json) -> None:
        told = _Told(str(item.get("type") or ""))
        self._current = told
        self._process(told, _Event(type="response.output_item.done", item=item))

    # --- the end ----------------------------------------------------------------------------------

    def _reason(self, response: Json, usage: Usage) -> FinishReason:
        details = response.get("incomplete_details")
        why = details.get("reason") if isinstance(details, Mapping) else None
        if isinstance(why, str):
            return _CUT.get(why, "length")
        if response.get("status") == "incomplete":
            return "length"
        # llama-server calls a reply completed that its limit has cut
        is_cut = self._most is not None and usage.output_tokens >= self._most
        return "length" if is_cut else "stop"
