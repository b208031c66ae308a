"""Answers of the Completions API, complete and streamed."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.response import Response

from .translated_request import ChoiceStream, sse_frame
from .usage import CompletionUsage, total_usage

if TYPE_CHECKING:
    from .completion_request import CompletionRequest

CompletionFinishReason = Literal["stop", "length", "content_filter"]


class CompletionLogprobs(Struct, frozen=True, kw_only=True):
    """Logprobs of a choice, one entry per token in each list. ``text_offset``: position in
    characters at which each token starts in the text of the choice."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...] | None
    text_offset: tuple[int, ...]


class CompletionChoice(Struct, frozen=True, kw_only=True):
    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: CompletionFinishReason | None = None


class Completion(Struct, frozen=True, kw_only=True):
    """An answer of the Completions API, or one chunk of a streamed answer."""

    id: str
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    object: Literal["text_completion"] = "text_completion"
    usage: CompletionUsage | UnsetType | None = UNSET


def make_completion(request: CompletionRequest, responses: Sequence[Response]) -> Completion:
    """Translate finished responses to one answer with one choice per response. Call it only if no
    response failed."""
    return Completion(
        **_head(responses[0]),
        choices=tuple(
            _choice(request.echoed_text(at), at, each) for at, each in enumerate(responses)
        ),
        usage=total_usage(responses, request.n),
    )


def _head(response: Response) -> JsonObject:
    return {
        "id": "cmpl-" + response.id.partition("_")[2],
        "created": response.created_at,
        "model": response.model,
    }


def _choice(echoed_text: str, index: int, response: Response) -> CompletionChoice:
    parts = text_parts(response)
    logprobs = tuple(logprob for part in parts for logprob in part.logprobs)
    return CompletionChoice(
        text=echoed_text + "".join(part.text for part in parts),
        index=index,
        logprobs=_logprobs(logprobs, _Offsets(echoed_text)) if logprobs else None,
        finish_reason=_reason(response),
    )


def text_parts(response: Response) -> list[it.OutputText]:
    """Return the texts of the response's messages, in order."""
    return [
        part
        for item in response.output
        for part in item.message_parts
        if isinstance(part, it.OutputText)
    ]


def _reason(response: Response) -> CompletionFinishReason:
    if response.incomplete_details is None:
        return "stop"
    is_filter = response.incomplete_details.reason == "content_filter"
    return "content_filter" if is_filter else "length"


class _Offsets:
    """Computes the position in characters at which each token starts in the text of a choice. A
    token may be only some bytes of a character, so the bytes of all tokens are decoded as one
    stream. ``echoed_text``: the prompt with which the text begins, or ""."""

    def __init__(self, echoed_text: str) -> None:
        self._offset = len(echoed_text)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def next(self, logprob: it.Logprob) -> int:
        at = self._offset
        self._offset += len(self._decode(bytes(logprob.bytes or ())))
        return at


def _logprobs(logprobs: Sequence[it.Logprob], offsets: _Offsets) -> CompletionLogprobs:
    tops = [{top.token: top.logprob for top in one.top_logprobs} for one in logprobs]
    return CompletionLogprobs(
        tokens=tuple(one.token for one in logprobs),
        token_logprobs=tuple(one.logprob for one in logprobs),
        top_logprobs=tuple(tops) if any(tops) else None,
        text_offset=tuple(map(offsets.next, logprobs)),
    )


# --- streaming -----------------------------------------------------------------------------------


class CompletionStream(ChoiceStream):
    """Encodes the events of one response as the chunks of one choice. ``first``: the response of
    the first choice, which determines the id and the model of the answer."""

    def __init__(self, request: CompletionRequest, first: Response, index: int) -> None:
        self._request = request
        self._head = _head(first)
        self._index = index
        self._echoed_text = request.echoed_text(index)
        self._usage = None if request.include_usage else UNSET
        self._offsets = _Offsets(self._echoed_text)

    def usage_frame(self, responses: Sequence[Response]) -> bytes:
        """Return the chunk that contains the total usage of ``responses``, as a frame of a
        ``text/event-stream``. Returns b"" if the request does not set ``include_usage``."""
        if not self._request.include_usage:
            return b""
        used = total_usage(responses, self._request.n)
        return sse_frame(Completion(**self._head, choices=(), usage=used))

    def _frames(self, event: ev.Event) -> Iterator[bytes]:
        match event:
            case ev.Created() if self._echoed_text:
                yield self._chunk(self._echoed_text)
            case ev.OutputTextDelta(delta=text, logprobs=logprobs):
                yield self._chunk(text, logprobs)
            case ev.Completed(response=response) | ev.Incomplete(response=response):
                yield self._chunk("", finish=_reason(response))
            case ev.Error(error=error):
                yield sse_frame({"error": error})
            case ev.Keepalive():
                yield b": keepalive\n\n"

    def _chunk(
        self,
        text: str,
        logprobs: Sequence[it.Logprob] = (),
        finish: CompletionFinishReason | None = None,
    ) -> bytes:
        choice = CompletionChoice(
            text=text,
            index=self._index,
            logprobs=_logprobs(logprobs, self._offsets) if logprobs else None,
            finish_reason=finish,
        )
        return sse_frame(Completion(**self._head, choices=(choice,), usage=self._usage))
