"""A Chat Completions stream becomes deltas, however its server bends the rules. Sans-IO.

Calls may come in turn or mixed, without ids, all under one index, whole or in pieces; the deltas
tell of one item at a time, so what comes of a later call waits for the one before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec

from antiphon.backends.remote.delta_builder import DeltaBuilder
from antiphon.dialects.base import Parser
from antiphon.dialects.json_stream import JsonSpan, dump
from antiphon.dialects.parser.tool_call import CallBuilder, ToolShape
from antiphon.errors import BackendError
from antiphon.stream.deltas import Delta, Finish, FinishReason
from antiphon.tokens import Chunk as Tokens
from antiphon.upstream.errors import GIVEN_UP, complaint, refused
from antiphon.upstream.sse import MOST
from antiphon.wire.items import Logprob

from . import chunks as cc

__all__ = ["ChatStreamParser"]

#: Bytes of text that are taken for one token where nobody counts them.
_TOKEN_BYTES = 4


class _Pending:
    """A call as it comes: its name, then its arguments, which wait until it is its turn."""

    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.name = ""
        self.held: list[str] = []
        self.call: CallBuilder | None = None
        self._span: JsonSpan | None = None
        self._argued = False

    @property
    def over(self) -> bool:
        return self._span is not None and self._span.complete

    def named(self, name: str) -> None:
        """Some repeat the name with every piece; some cut it, or send it behind the arguments."""
        if not (self._argued and self.name) and name != self.name:
            self.name += name

    def argued(self, text: str) -> None:
        """More arguments; what follows a whole object (some say all of it again) is left out."""
        if not self._argued:
            text = text.lstrip()
            if not text:
                return
            self._argued = True
            self._span = JsonSpan() if text.startswith("{") else None
        if self._span is not None:
            text = text[: self._span.read(text)] if not self._span.complete else ""
        if text:
            self.held.append(text)

    @property
    def ready(self) -> bool:
        """Its name is whole."""
        return bool(self.name) and self._argued


class _Counted:
    """The tokens of thinking, from how many there are in all at each step."""

    def __init__(self) -> None:
        self.tokens = self._all = self._pending = 0

    def at(self, count: int, is_thinking: bool | None, *, has_ended: bool = False) -> None:
        """``is_thinking``: what was said since; None: nothing, what it begins is yet to come.
        ``has_ended``: all but the one token that ends thinking was."""
        self._pending += max(0, count - self._all)
        self._all = max(count, self._all)
        if is_thinking is not None:
            self.tokens += self._pending if is_thinking else max(0, self._pending - 1) * has_ended
            self._pending = 0


class ChatStreamParser:
    """One reply. ``shapes``: the names the model was shown → what they are on the wire. ``taken``:
    ids that calls of the conversation have. ``thinking``: reads thinking that stands in the
    content. ``origin``: marks what is kept for this upstream alone."""

    def __init__(
        self,
        shapes: Mapping[str, ToolShape],
        *,
        taken: Iterable[str] = (),
        thinking: Parser | None = None,
        origin: str = "",
        given: int = 0,
    ) -> None:
        self._shapes = shapes
        self._items = DeltaBuilder(taken)
        self._thinking = thinking
        self._origin = origin
        self._calls: list[_Pending] = []
        self._by_id: dict[str, _Pending] = {}
        self._by_index: dict[int, _Pending] = {}
        self._ended = 0  # how many of them are over
        self._details: list[dict[str, object]] = []
        self._usage: cc.Used | None = None
        self._given = given
        self._length = 0
        self._thought = _Counted()
        self._was_thought = False  # what was said last
        self._has_ended = False  # it was, and nothing else has been said since
        self._choice: int | None = None
        self._finish: str | None = None

    def feed(self, payloads: Iterable[bytes]) -> tuple[Delta, ...]:
        """What payloads that came together add. Raises ``BackendError`` for an error, or what
        cannot be read."""
        for payload in payloads:
            self._take(payload)
        return self.taken()

    def taken(self) -> tuple[Delta, ...]:
        """What has been read and not been given out: what came before an error."""
        return self._items.take()

    def _take(self, payload: bytes) -> None:
        try:
            chunk = cc.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise BackendError("The upstream's answer cannot be read.") from None
        if chunk.error or chunk.object == "error":
            raise refused(
                _status_of(chunk.error), complaint(chunk.error or {"message": chunk.message})
            )
        before = self._length
        for choice in chunk.choices or ():
            if choice.index is not None and choice.index != self._choice:
                if self._choice is not None:
                    continue  # one was asked for
                self._choice = choice.index
            if (delta := choice.delta or choice.message) is not None:
                self._read(delta, choice)
            if choice.finish_reason:
                self._finish = choice.finish_reason
        if chunk.usage is not cc.NOTHING or chunk.timings is not None:
            self._count(chunk, says=self._length > before)

    def _count(self, chunk: cc.Chunk, *, says: bool) -> None:
        """``says``: there is more in it than numbers."""
        if (told := cc.used_in(chunk)) is not None:
            self._usage = told
        if (count := cc.sampled_at(chunk, told)) is not None:
            was_thought = self._was_thought if says else None
            self._thought.at(count, was_thought, has_ended=self._has_ended)
            self._has_ended = False

    def finish(self, *, done: bool) -> tuple[Delta, ...]:
        """The end. ``done``: the upstream said so; otherwise it must have said why. Raises
        ``BackendError`` for a stream that broke off."""
        if self._finish is None and not done:
            raise BackendError("The upstream's answer broke off.")
        if self._finish in GIVEN_UP:
            raise BackendError("The upstream failed.")
        reason = cast(FinishReason, cc.REASONS.get(self._finish or "stop", "stop"))
        self._progress(final=True, is_cut=reason == "length")
        if self._thinking is not None and self._items.open != "call":
            self._items.took(self._thinking.finish(reason))
        if reason == "stop":
            self._close()
            if self._details and self._origin:  # they came late: an item of their own keeps them
                self._items.begin("reasoning")
                self._close()
        said = -(-self._length // _TOKEN_BYTES)
        usage = cc.usage_of(self._usage, self._given, said, self._thought.tokens)
        return (*self._items.take(), Finish(reason, usage))

    def _read(self, delta: cc.Delta, choice: cc.Choice) -> None:
        thought = delta.reasoning_content or delta.reasoning
        if thought or delta.reasoning_details:
            self._think(thought if isinstance(thought, str) else "", delta.reasoning_details or [])
        content = delta.content
        if content:
            if isinstance(content, str):
                self._say(content, cc.logprobs_of(choice) if choice.logprobs else ())
            else:
                self._parts(content)
        if delta.refusal:
            self._leave_calls()
            self._length += len(delta.refusal)
            self._was_thought = False
            self._items.text("message", delta.refusal, channel="refusal")
        if delta.function_call is not None:
            self._call(cc.Call(index=0, function=delta.function_call))
        for call in delta.tool_calls or ():
            self._call(call)
        if self._calls:
            self._progress()

    # --- text -------------------------------------------------------------------------------------

    def _say(self, text: str, logprobs: Sequence[Logprob] = ()) -> None:
        if self._calls:
            if not text.strip():
                return  # some send line ends beside calls
            self._leave_calls()
        self._length += len(text)
        if self._items.open == "reasoning" and self._thinking is None:
            self._close()
        if self._thinking is None:
            self._items.text("message", text, logprobs)
            self._was_thought = False
            return
        self._items.took(self._thinking.feed(Tokens(tail=text)))
        was, self._was_thought = self._was_thought, self._thinking.is_thinking
        self._has_ended = was and not self._was_thought and self._items.open == "reasoning"

    def _think(self, text: str, details: list[dict[str, object]]) -> None:
        for detail in details:
            self._keep(detail)
        text = text or "".join(
            str(each.get("text") or each.get("summary") or "") for each in details
        )
        if text:
            self._leave_calls()
            self._length += len(text)
            self._items.text("reasoning", text)
            self._was_thought = True

    def _keep(self, detail: dict[str, object]) -> None:
        """Pieces of one detail have its type and its index; their texts are joined in the end."""
        last = self._details[-1] if self._details else {}
        if not all(last.get(key) == detail.get(key) for key in ("type", "index")) or not last:
            self._details.append(last := {})
        for key, value in detail.items():
            before = last.get(key)
            if key in _JOINED and isinstance(value, str):
                if not isinstance(before, _Pieces):
                    last[key] = before = _Pieces()
                before.append(value)
            elif value is not None or key not in last:
                last[key] = value

    def _parts(self, parts: Iterable[object]) -> None:
        """Content as a list: Mistral's, with thinking as parts among it."""
        for part in parts:
            if not isinstance(part, dict):
                continue
            inner = part.get("thinking")
            if isinstance(inner, list):
                self._think(
                    "".join(str(p.get("text", "")) for p in inner if isinstance(p, dict)), []
                )
            elif isinstance(part.get("text"), str):
                self._say(part["text"])

    # --- calls ------------------------------------------------------------------------------------

    def _call(self, told: cc.Call) -> None:
        pending = self._pending(told)
        function = told.function
        if function is None:
            return
        if function.name:
            pending.named(function.name)
        arguments = function.arguments
        if arguments:
            text = arguments if isinstance(arguments, str) else dump(arguments)
            self._length += len(text)
            self._was_thought = False
            if self._length > MOST:  # of a call whose turn it is not, nothing is said yet
                raise BackendError("The upstream's answer is too long.")
            pending.argued(text)

    def _pending(self, told: cc.Call) -> _Pending:
        """The call that is meant: by its id, else by its index; a new id or a new name where
        there are arguments already begins another."""
        call_id, name = told.id or "", (told.function and told.function.name) or ""
        known = self._by_id.get(call_id)
        if known is None:
            last = self._calls[-1] if self._calls else None
            known = last if told.index is None else self._by_index.get(told.index)
            if known is not None and (
                (call_id and known.id and call_id != known.id)
                or (name and known.name and known.over and not (call_id and call_id == known.id))
                or (name and known.ready and name != known.name)
            ):
                known = None
        if known is None:
            known = _Pending(call_id)
            self._calls.append(known)
            if told.index is not None:
                self._by_index[told.index] = known
        known.id = known.id or call_id
        if known.id:
            self._by_id[known.id] = known
        return known

    def _progress(self, *, final: bool = False, is_cut: bool = False) -> None:
        """Let the first call that is not over go on, and the next ones where it is."""
        while self._ended < len(self._calls):
            pending = self._calls[self._ended]
            last = self._ended == len(self._calls) - 1
            if pending.call is None and pending.name and (pending.ready or final):
                self._begin(pending)
            if pending.call is not None and pending.held:
                pending.call.add_json_arguments("".join(pending.held))
                pending.held.clear()
            is_whole = pending.over and pending.call is not None
            if not is_whole and not (final and not (is_cut and last)):
                return
            if pending.call is not None:
                pending.call.finish()
            self._ended += 1

    def _begin(self, pending: _Pending) -> None:
        self._close()
        pending.call = CallBuilder(self._items, self._shapes, is_bare=False)
        pending.call.name, pending.call.call_id = pending.name, pending.id
        pending.call.start()

    def _leave_calls(self) -> None:
        """Something else is said: what was called is whole."""
        if self._ended < len(self._calls):
            self._progress(final=True)

    def _close(self) -> None:
        kept = ""
        if self._items.open == "reasoning" and self._details and self._origin:
            details = [{key: _joined(each[key]) for key in each} for each in self._details]
            kept = f"{self._origin}\n{json.dumps(details)}"
            self._details = []
        self._items.close(kept)


#: Fields of a detail that come in pieces.
_JOINED = frozenset({"text", "summary", "data", "signature"})


class _Pieces(list[str]):
    """A text that goes on."""


def _joined(value: object) -> object:
    return "".join(value) if isinstance(value, _Pieces) else value


def _status_of(error: object) -> int:
    code = error.get("code") if isinstance(error, Mapping) else None
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    return code if isinstance(code, int) else 500
