"""Answers of the Completions API, whole and streamed: a choice is a text and why it ends."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire.response import Response

from .usage import Usage, usage

__all__ = ["TextChoice", "TextChunks", "TextCompletion", "TextLogprobs", "completion"]

Reason = Literal["stop", "length", "content_filter"]
_encode = msgspec.json.Encoder().encode


class _Asked(Protocol):
    @property
    def n(self) -> int: ...
    @property
    def include_usage(self) -> bool: ...
    def lead(self, index: int) -> str: ...


class TextLogprobs(Struct, frozen=True, kw_only=True):
    """Token by token. ``text_offset`` counts characters from the beginning of the choice."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...] | None
    text_offset: tuple[int, ...]


class TextChoice(Struct, frozen=True, kw_only=True):
    text: str
    index: int
    logprobs: TextLogprobs | None = None
    finish_reason: Reason | None = None


class TextCompletion(Struct, frozen=True, kw_only=True):
    """An answer, or a piece of a streamed one."""

    id: str
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET


def completion(asked: _Asked, responses: Sequence[Response]) -> TextCompletion:
    """Responses that are over, none of which failed."""
    return TextCompletion(
        **_head(responses[0]),
        choices=tuple(_choice(asked.lead(at), at, each) for at, each in enumerate(responses)),
        usage=usage(responses, asked.n),
    )


def _head(response: Response) -> dict[str, Any]:
    return {
        "id": "cmpl-" + response.id.partition("_")[2],
        "created": response.created_at,
        "model": response.model,
    }


def _choice(lead: str, index: int, response: Response) -> TextChoice:
    parts = [
        part
        for item in response.output
        if isinstance(item, it.Message)
        for part in item.content
        if isinstance(part, it.OutputText)
    ]
    logprobs = tuple(logprob for part in parts for logprob in part.logprobs)
    return TextChoice(
        text=lead + "".join(part.text for part in parts),
        index=index,
        logprobs=_logprobs(logprobs, _Offsets(lead)) if logprobs else None,
        finish_reason=_reason(response),
    )


def _reason(response: Response) -> Reason:
    if response.incomplete_details is None:
        return "stop"
    is_filter = response.incomplete_details.reason == "content_filter"
    return "content_filter" if is_filter else "length"


class _Offsets:
    """Where tokens begin in the text they make, in characters, which tokens may be parts of."""

    def __init__(self, lead: str) -> None:
        self._at = len(lead)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def next(self, logprob: it.Logprob) -> int:
        at = self._at
        self._at += len(self._decode(bytes(logprob.bytes or ())))
        return at


def _logprobs(logprobs: Sequence[it.Logprob], offsets: _Offsets) -> TextLogprobs:
    tops = [{top.token: top.logprob for top in one.top_logprobs} for one in logprobs]
    return TextLogprobs(
        tokens=tuple(one.token for one in logprobs),
        token_logprobs=tuple(one.logprob for one in logprobs),
        top_logprobs=tuple(tops) if any(tops) else None,
        text_offset=tuple(map(offsets.next, logprobs)),
    )


# --- streamed ------------------------------------------------------------------------------------


class TextChunks:
    """The pieces of one choice. ``first``: the response whose id and model the answer has."""

    def __init__(self, asked: _Asked, first: Response, index: int) -> None:
        self._asked = asked
        self._head = _head(first)
        self._index = index
        self._lead = asked.lead(index)
        self._usage = None if asked.include_usage else UNSET
        self._offsets = _Offsets(self._lead)

    def frames(self, events: Iterable[ev.Event]) -> bytes:
        """What these events are, as bytes of a ``text/event-stream``; perhaps nothing."""
        return b"".join(frame for event in events for frame in self._frames(event))

    def last(self, responses: Sequence[Response]) -> bytes:
        """What was used by all of them, where that was asked for."""
        if not self._asked.include_usage:
            return b""
        used = usage(responses, self._asked.n)
        return _frame(TextCompletion(**self._head, choices=(), usage=used))

    def _frames(self, event: ev.Event) -> Iterator[bytes]:
        match event:
            case ev.Created() if self._lead:
                yield self._chunk(self._lead)
            case ev.OutputTextDelta(delta=text, logprobs=logprobs):
                yield self._chunk(text, logprobs)
            case ev.Completed(response=response) | ev.Incomplete(response=response):
                yield self._chunk("", finish=_reason(response))
            case ev.Error(error=error):
                yield _frame({"error": error})
            case ev.Keepalive():
                yield b": keepalive\n\n"

    def _chunk(
        self, text: str, logprobs: Sequence[it.Logprob] = (), finish: Reason | None = None
    ) -> bytes:
        said = _logprobs(logprobs, self._offsets) if logprobs else None
        choice = TextChoice(text=text, index=self._index, logprobs=said, finish_reason=finish)
        return _frame(TextCompletion(**self._head, choices=(choice,), usage=self._usage))


def _frame(value: Any) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"
