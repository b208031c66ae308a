"""Parse a Chat Completions stream into deltas. Known deviations from OpenAI's API are accepted.
Sans-IO.

Servers send tool calls one by one or interleaved, and whole or in pieces. Some servers send no ids,
and some servers use one index for all calls. In deltas, only one item is open at a time. So the
deltas of a call are held back until the previous call is complete. Text and reasoning that arrive
between the pieces of calls are held back until these calls are complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import cast

import msgspec

from antiphon.backends.remote.delta_builder import DeltaBuilder
from antiphon.dialects.base import Parser
from antiphon.dialects.json_stream import JsonSpan, dump
from antiphon.dialects.parser.tool_call import CallBuilder, ToolShape
from antiphon.errors import BackendError
from antiphon.inference.tokens import Chunk as Tokens
from antiphon.stream.deltas import Delta, Finish, FinishReason
from antiphon.support.text import replace_lone_surrogates
from antiphon.upstream.errors import ABORT_REASONS, parse_error, upstream_error
from antiphon.upstream.sse import MAX_RESPONSE_BYTES
from antiphon.upstream.surrogates import SurrogateJoiner, decode_leniently
from antiphon.wire.items import Logprob

from . import chunks as cc

#: Assumed number of characters per token, for estimates if the upstream reports no usage.
_TOKEN_BYTES = 4


class _PendingCall:
    """A tool call that is still streaming. Its arguments are buffered until all earlier calls are
    complete."""

    def __init__(self, call_id: str, index: int | str | None) -> None:
        self.id = call_id
        self.index = index
        self.name = ""
        self.pending_arguments: list[str] = []
        self.call: CallBuilder | None = None
        self._span: JsonSpan | None = None
        self._has_arguments = False
        self._has_fields = False

    @property
    def is_complete(self) -> bool:
        """Whether the arguments received so far are a whole JSON object."""
        return self._span is not None and self._span.complete

    @property
    def is_empty(self) -> bool:
        """Whether the arguments are an empty object, or its beginning, which no delta contains yet.
        Some servers send it before the real arguments."""
        return bool(self.pending_arguments) and not self._has_fields

    def add_name(self, name: str) -> None:
        """Add a piece of the function name.

        Some servers split the name into pieces. Other servers repeat the whole name, so a piece
        that equals the name so far is ignored. The name may also arrive after the arguments.
        """
        if not (self._has_arguments and self.name) and name != self.name:
            self.name += name

    def add_arguments(self, text: str) -> None:
        """Add a piece of the arguments. Text after the end of the JSON object is dropped, because
        some servers repeat the object. An object after an empty object replaces it."""
        if self.is_complete and self.is_empty and text.lstrip().startswith("{"):
            self.pending_arguments, self._has_arguments = [], False
        if not self._has_arguments:
            text = text.lstrip()
            if not text:
                return
            self._has_arguments = True
            self._span = JsonSpan() if text.startswith("{") else None
        if self._span is not None:
            text = text[: self._span.read(text)] if not self._span.complete else ""
        if text:
            self.pending_arguments.append(text)
            self._has_fields |= bool(text.strip("{} \t\r\n"))

    @property
    def is_ready(self) -> bool:
        """Whether the function name of the call is complete, so that a delta can open the call. The
        name counts as complete when the arguments have begun."""
        return bool(self.name) and self._has_arguments


class _ReasoningCounter:
    """Counts the reasoning tokens of a reply. With each chunk, the upstream reports only the number
    of all tokens so far. So the increase since the last chunk is counted as reasoning if the chunk
    contains reasoning."""

    def __init__(self) -> None:
        self.tokens = self._total = self._unassigned = 0

    def update(self, count: int, is_thinking: bool | None, *, has_ended: bool = False) -> None:
        """Count the tokens since the last update.

        ``count``: number of all tokens so far. ``is_thinking``: whether the text since the last
        update is reasoning. If None, there was no text, and the new tokens are counted with the
        next text. ``has_ended``: whether the reasoning has ended since the last update. If so, all
        new tokens are reasoning, except the one token that ended the reasoning.
        """
        self._unassigned += max(0, count - self._total)
        self._total = max(count, self._total)
        if is_thinking is not None:
            self.tokens += (
                self._unassigned if is_thinking else max(0, self._unassigned - 1) * has_ended
            )
            self._unassigned = 0


class ChatStreamParser:
    """Parses the stream of one reply.

    ``shapes``: function name shown to the model → the tool. ``used_call_ids``: ids of the
    conversation's calls, which new calls must not reuse. ``reasoning_parser``: parses reasoning
    within the content, for upstreams that do not separate it. ``origin``: the address of the
    upstream. It is stored with reasoning details, because only this upstream can read them.
    ``input_tokens``: estimated number of tokens of the prompt, for upstreams that report no usage.
    ``stop``: the stop strings of the request.
    """

    def __init__(
        self,
        shapes: Mapping[str, ToolShape],
        *,
        used_call_ids: Iterable[str] = (),
        reasoning_parser: Parser | None = None,
        origin: str = "",
        input_tokens: int = 0,
        stop: Collection[str] = (),
    ) -> None:
        self._shapes = shapes
        self._stop = stop
        self._stop_text: str | None = None
        self._items = DeltaBuilder(used_call_ids)
        self._reasoning_parser = reasoning_parser
        self._origin = origin
        self._calls: list[_PendingCall] = []
        self._by_id: dict[str, _PendingCall] = {}
        self._by_index: dict[int | str, _PendingCall] = {}
        self._ended_count = 0
        self._details: list[dict[str, object]] = []
        self._usage: cc.ReportedUsage | None = None
        self._input_tokens = input_tokens
        self._text_bytes = 0
        self._reasoning_counter = _ReasoningCounter()
        self._last_was_reasoning = False
        #: Whether the reasoning has just ended and no text has followed yet.
        self._reasoning_ended = False
        self._choice: int | None = None
        self._finish: str | None = None
        #: Joins the halves of characters, once a chunk has contained one.
        self._halves: SurrogateJoiner | None = None
        #: Text and reasoning that arrived between the pieces of calls: they follow the calls.
        self._waiting: list[Callable[[], None]] = []
        #: The length of all arguments, and of all text that had to wait.
        self._waiting_length = 0

    def feed(self, payloads: Iterable[bytes]) -> tuple[Delta, ...]:
        """Parse the ``data`` of several server-sent events that arrived together. Return their
        deltas. Raises ``BackendError`` if an event reports an error or is unreadable."""
        for payload in payloads:
            self._read_payload(payload)
        return self._items.take_deltas()

    def pending_deltas(self) -> tuple[Delta, ...]:
        """Return the deltas that the last ``feed`` call parsed before it raised an error."""
        return self._items.take_deltas()

    def _read_payload(self, payload: bytes) -> None:
        try:
            chunk = cc.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            chunk = self._decode_leniently(payload)
        if chunk.error or chunk.object == "error":
            raise upstream_error(
                _status_of(chunk.error), parse_error(chunk.error or {"message": chunk.message})
            )
        before = self._text_bytes
        for choice in chunk.choices or ():
            if choice.index is not None and choice.index != self._choice:
                if self._choice is not None:
                    continue  # only one choice was requested
                self._choice = choice.index
            if (delta := choice.delta or choice.message) is not None:
                self._read(delta, choice)
            if choice.finish_reason:
                self._end_choice(choice, choice.finish_reason)
        if chunk.usage is not cc.MISSING_FIELD or chunk.timings is not None:
            self._count(chunk, has_content=self._text_bytes > before)

    def _end_choice(self, choice: cc.ChunkChoice, reason: str) -> None:
        self._finish = reason
        # Servers also report the stop strings of their templates, and ids of tokens.
        ends = (choice.stop_reason, choice.matched_stop)
        self._stop_text = next((text for text in ends if text in self._stop), None)

    def _decode_leniently(self, payload: bytes) -> cc.UpstreamChunk:
        """Decode a chunk that the strict decoder refuses, for example because it contains half a
        character. Raises ``BackendError`` if it cannot be read at all."""
        try:
            chunk = decode_leniently(payload, cc.UpstreamChunk, _STREAMED_TEXTS.__contains__)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise BackendError("The upstream's answer cannot be read.") from None
        self._halves = self._halves or SurrogateJoiner()
        return chunk

    def _join(self, key: object, text: str) -> str:
        return text if self._halves is None else self._halves.join(key, text)

    def _count(self, chunk: cc.UpstreamChunk, *, has_content: bool) -> None:
        """Read the usage of a chunk, and count the reasoning tokens. ``has_content``: whether the
        chunk also has text. If it has no text, its tokens are counted with the next text."""
        if (reported := cc.usage_in(chunk)) is not None:
            self._usage = reported
        if (count := cc.sampled_token_count(chunk, reported)) is not None:
            was_reasoning = self._last_was_reasoning if has_content else None
            self._reasoning_counter.update(count, was_reasoning, has_ended=self._reasoning_ended)
            self._reasoning_ended = False

    def finish(self, *, done: bool) -> tuple[Delta, ...]:
        """Return the remaining deltas when the stream has ended.

        Raises ``BackendError`` if the upstream sent no finish reason or reports a failure.

        ``done``: ignored. ``[DONE]`` does not show that the answer is complete, because a router
        also sends ``[DONE]`` if the server behind the router fails during the answer.
        """
        if self._finish is None:
            raise BackendError("The upstream's answer broke off.")
        if self._finish in ABORT_REASONS:
            raise BackendError("The upstream failed.")
        reason = cast(FinishReason, cc.FINISH_REASONS.get(self._finish, "stop"))
        self._end_halves()
        self._progress(final=True, is_cut=reason == "length" and not self._waiting)
        self._add_waiting()
        if self._reasoning_parser is not None and self._items.open != "call":
            self._items.append_all(self._reasoning_parser.finish(reason))
        if reason == "stop":
            self._close_item()
            if (
                self._details and self._origin
            ):  # the details came after the reasoning: store them in a separate item
                self._items.open_text_item("reasoning")
                self._close_item()
        output_tokens = -(-self._text_bytes // _TOKEN_BYTES)
        usage = cc.usage_of(
            self._usage, self._input_tokens, output_tokens, self._reasoning_counter.tokens
        )
        return (*self._items.take_deltas(), Finish(reason, usage, self._stop_text))

    def _read(self, delta: cc.ChunkDelta, choice: cc.ChunkChoice) -> None:
        reasoning = delta.reasoning_content or delta.reasoning
        if reasoning or delta.reasoning_details:
            self._add_reasoning(
                reasoning if isinstance(reasoning, str) else "", delta.reasoning_details or []
            )
        content = delta.content
        if content:
            if isinstance(content, str):
                if self._halves is not None:
                    content = self._halves.join("content", content)
                self._add_text(content, cc.logprobs_of(choice) if choice.logprobs else ())
            else:
                self._add_parts(content)
        if delta.refusal:
            self._end_calls()
            refusal = replace_lone_surrogates(delta.refusal)
            self._text_bytes += len(refusal)
            self._last_was_reasoning = False
            self._items.text("message", refusal, channel="refusal")
        if delta.function_call is not None:
            self._add_call(cc.Call(index=0, function=delta.function_call))
        for call in delta.tool_calls or ():
            self._add_call(call)
        if self._calls:
            self._progress()

    # --- text -------------------------------------------------------------------------------------

    def _add_text(self, text: str, logprobs: tuple[Logprob, ...] = ()) -> None:
        if self._calls:
            if not text.strip() and not self._waiting:
                return  # some servers send line breaks between calls
            if self._has_open_call:
                self._check_waiting(len(text))
                self._waiting.append(partial(self._add_text, text, logprobs))
                return
        self._text_bytes += len(text)
        if self._reasoning_parser is None:
            if self._items.open == "reasoning":
                self._close_item()
            self._items.text("message", text, logprobs)
            self._last_was_reasoning = False
            return
        self._items.append_all(self._reasoning_parser.feed(Tokens(tail=text)))
        was, self._last_was_reasoning = self._last_was_reasoning, self._reasoning_parser.is_thinking
        self._reasoning_ended = (
            was and not self._last_was_reasoning and self._items.open == "reasoning"
        )

    def _add_reasoning(self, text: str, details: list[dict[str, object]]) -> None:
        for detail in details:
            self._add_detail(detail)
        text = text or "".join(
            str(each.get("text") or each.get("summary") or "") for each in details
        )
        text = self._join("reasoning", text)
        if text and self._has_open_call:
            self._check_waiting(len(text))
            self._waiting.append(lambda: self._write_reasoning(text))
        elif text:
            self._write_reasoning(text)

    def _write_reasoning(self, text: str) -> None:
        self._text_bytes += len(text)
        self._items.text("reasoning", text)
        self._last_was_reasoning = True

    def _add_detail(self, detail: dict[str, object]) -> None:
        """Add a piece of a reasoning detail, which is an object that only the upstream understands.
        Consecutive pieces with the same type and index belong to one detail. The texts of these
        pieces are joined when the reasoning item is closed."""
        last = self._details[-1] if self._details else {}
        if not all(last.get(key) == detail.get(key) for key in ("type", "index")) or not last:
            self._details.append(last := {})
        for key, value in detail.items():
            before = last.get(key)
            if key in _STREAMED_FIELDS and isinstance(value, str):
                if not isinstance(before, _StreamedText):
                    last[key] = before = _StreamedText()
                before.append(value)
            elif value is not None or key not in last:
                last[key] = value

    def _add_parts(self, parts: Iterable[object]) -> None:
        """Add content that is a list of parts. Mistral sends content and reasoning as such a
        list."""
        for part in parts:
            if not isinstance(part, dict):
                continue
            inner = part.get("thinking")
            if isinstance(inner, list):
                self._add_reasoning(
                    "".join(str(p.get("text", "")) for p in inner if isinstance(p, dict)), []
                )
            elif isinstance(part.get("text"), str):
                self._add_text(self._join("content", part["text"]))

    # --- calls ------------------------------------------------------------------------------------

    def _add_call(self, chunk: cc.Call) -> None:
        pending = self._find_call(chunk)
        function = chunk.function
        if function is None:
            return
        if function.name:
            pending.add_name(function.name)
        arguments = function.arguments
        if arguments not in (None, ""):
            text = arguments if isinstance(arguments, str) else dump(arguments)
            text = self._join(pending, text)
            self._text_bytes += len(text)
            self._last_was_reasoning = False
            self._check_waiting(len(text))
            pending.add_arguments(text)

    def _find_call(self, chunk: cc.Call) -> _PendingCall:
        """Return the tool call to which ``chunk`` belongs. ``chunk`` is a whole call or a piece of
        a call.

        The call is found by the id of the chunk, or by its index if no call has this id. A chunk
        with a new id starts another call. A chunk with a new name also starts another call if the
        arguments of the current call have begun.
        """
        call_id, name = str(chunk.id or ""), (chunk.function and chunk.function.name) or ""
        pending = self._with_id(call_id, chunk.index)
        if pending is not None and self._is_shared_id(pending, chunk.index, name):
            pending = None
        elif pending is None:
            last = self._calls[-1] if self._calls else None
            pending = last if chunk.index is None else self._by_index.get(chunk.index)
            if pending is not None and (
                (call_id and pending.id and call_id != pending.id)
                or (name and self._is_next_call(pending, chunk))
            ):
                pending = None
        if pending is None:
            pending = _PendingCall(call_id, chunk.index)
            self._calls.append(pending)
            if chunk.index is not None:
                self._by_index[chunk.index] = pending
        pending.id = pending.id or call_id
        if pending.id:
            self._by_id[pending.id] = pending
        return pending

    def _with_id(self, call_id: str, index: int | str | None) -> _PendingCall | None:
        """Return the tool call with this id, or None. If several calls have this id, return the
        call that also has this index. If no call has this index, return the last call with this
        id."""
        at_index = None if index is None else self._by_index.get(index)
        if at_index is not None and call_id and at_index.id == call_id:
            return at_index
        return self._by_id.get(call_id)

    def _is_next_call(self, pending: _PendingCall, chunk: cc.Call) -> bool:
        """Return whether a piece with a name, but without the id of a call, starts another call
        than ``pending``. A piece that only repeats the name of a complete call does not."""
        function = chunk.function
        assert function is not None and function.name
        if pending.name == function.name and pending.is_complete:
            return bool(function.arguments)
        is_complete = bool(pending.name) and pending.is_complete
        return is_complete or self._is_other_name(pending, function.name)

    def _is_shared_id(self, pending: _PendingCall, index: int | str | None, name: str) -> bool:
        """Return whether a piece of a tool call starts a new call although its id is the id of
        ``pending``. Some servers give all parallel calls the same id.

        ``index``, ``name``: the index and the function name in the piece.
        """
        is_other = index is not None and pending.index is not None and index != pending.index
        is_new = is_other and index not in self._by_index
        return bool(name) and (is_new or self._is_other_name(pending, name))

    def _is_other_name(self, pending: _PendingCall, name: str) -> bool:
        """Return whether a name is that of another call than ``pending``, and no piece of its
        name."""
        if name == pending.name or not pending.name:
            return False
        is_piece = any(each.startswith(pending.name + name) for each in self._shapes)
        return pending.is_ready or (pending.name in self._shapes and not is_piece)

    def _progress(self, *, final: bool = False, is_cut: bool = False) -> None:
        """Emit the deltas of the first tool call that is not closed yet. If the call is complete,
        close it and continue with the next call.

        ``final``: whether no more pieces of these calls follow. If so, all calls are closed, also
        calls with incomplete arguments. ``is_cut``: whether the reply was cut off. If ``is_cut`` is
        true and the arguments of the last call are incomplete, this last call stays open.
        """
        while self._ended_count < len(self._calls):
            pending = self._calls[self._ended_count]
            last = self._ended_count == len(self._calls) - 1
            if pending.call is None and (pending.is_ready or final):
                self._start_call(pending)
            needs_more = pending.call is not None and pending.call.parameter_names
            is_held = not final and pending.is_empty and bool(last or needs_more)
            if pending.call is not None and pending.pending_arguments and not is_held:
                pending.call.add_json_arguments("".join(pending.pending_arguments))
                pending.pending_arguments.clear()
            is_whole = pending.is_complete and pending.call is not None and not is_held
            if not is_whole and not (final and not (is_cut and last)):
                return
            if pending.call is not None:
                pending.call.finish()
            self._ended_count += 1
        self._add_waiting()

    @property
    def _has_open_call(self) -> bool:
        return self._ended_count < len(self._calls)

    def _check_waiting(self, length: int) -> None:
        """Raise ``BackendError`` if what waits for the end of a call is too long. It is not in the
        deltas yet. ``length``: the length of the text that arrives."""
        self._waiting_length += length
        if self._waiting_length > MAX_RESPONSE_BYTES:
            raise BackendError("The upstream's answer is too long.", permanent=True)

    def _add_waiting(self) -> None:
        """Add the text and the reasoning that arrived between the pieces of calls."""
        waiting, self._waiting = self._waiting, []
        for add in waiting:
            add()

    def _end_halves(self) -> None:
        """Add U+FFFD for each half of a character whose other half never arrived."""
        if self._halves is None:
            return
        for pending in self._calls:
            pending.add_arguments(self._halves.finish(pending))
        if lost := self._halves.finish("reasoning"):
            self._add_reasoning(lost, [])
        if lost := self._halves.finish("content"):
            self._add_text(lost)

    def _start_call(self, pending: _PendingCall) -> None:
        """Start a call. If it has no name, its arguments must fit only one function. Otherwise they
        are text."""
        self._close_item()
        # The reply's filter handles calls of functions that were not offered.
        call = CallBuilder(self._items, self._shapes, is_bare=False, passes_unknown=True)
        call.name, call.call_id = pending.name, pending.id
        if pending.name:
            call.start()
        else:
            arguments = "".join(pending.pending_arguments)
            pending.pending_arguments.clear()
            call.is_unnamed = True
            call.add_json_arguments(arguments)
            if not call.start_by_arguments():
                if arguments:
                    self._items.text("message", arguments)
                return
        pending.call = call

    def _end_calls(self) -> None:
        """End all open tool calls. Called when other content follows them in the stream."""
        if self._ended_count < len(self._calls):
            self._progress(final=True)

    def _close_item(self) -> None:
        state = ""
        if self._items.open == "reasoning" and self._details and self._origin:
            details = [{key: _joined(each[key]) for key in each} for each in self._details]
            state = f"{self._origin}\n{json.dumps(details)}"
            self._details = []
        self._items.close(state)


#: Fields of a chunk whose text is streamed in pieces.
_STREAMED_TEXTS = frozenset(
    {"content", "reasoning", "reasoning_content", "refusal", "arguments", "text", "thinking"}
)
#: Fields of a reasoning detail that are streamed in pieces.
_STREAMED_FIELDS = frozenset({"text", "summary", "data", "signature"})


class _StreamedText(list[str]):
    """The text of a field that is still being streamed, as a list of pieces. It has a class of its
    own, so that it is not mistaken for a list in the upstream's JSON."""


def _joined(value: object) -> object:
    return "".join(value) if isinstance(value, _StreamedText) else value


def _status_of(error: object) -> int:
    code = error.get("code") if isinstance(error, Mapping) else None
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    return code if isinstance(code, int) else 500
