"""The answers of servers that continue token ids, payload by payload: new tokens, and the end.

What they call things differs; what comes out is the same. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Struct

from antiphon.engines.base import Sampling
from antiphon.engines.llama.partial_tokens import PartialTokens
from antiphon.errors import BackendError
from antiphon.tokens import Alternative, Prompt, Tokenizer, TokenLogprob
from antiphon.upstream.errors import GIVEN_UP, complaint, refused

__all__ = [
    "CompletionsStreamParser",
    "LlamaPieces",
    "Piece",
    "SglangPieces",
    "StreamRequest",
    "TrtllmPieces",
    "VllmGeneratePieces",
    "VllmPieces",
]

#: What OpenAI's API gives for a token whose log-probability is not known.
UNKNOWN_LOGPROB = -9999.0

#: What decoding JSON that others wrote may raise.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

#: The most tokens that end within one character.
_MOST_WITHHELD = 8

#: The id of a token: another number is none.
Id = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

Reason = Literal["stop", "length"]


class StreamRequest(Struct, frozen=True, kw_only=True):
    """One continuation that is asked for. ``held``: what is said of its constraint."""

    model: str
    prompt: Prompt
    sampling: Sampling
    tokenizer: Tokenizer
    withheld: PartialTokens
    held: Mapping[str, Any] = {}


class Piece(Struct):
    """What one payload says. ``untold``: tokens that were sampled and are not told of. ``prompt``:
    the tokens of the prompt, images and all."""

    tokens: list[TokenLogprob] = []
    reason: Reason | None = None
    untold: int = 0
    cached: int | None = None
    prompt: int | None = None


class CompletionsStreamParser(Protocol):
    """Reads one answer."""

    def feed(self, payload: bytes) -> Piece:
        """Raises ``BackendError`` for an error, or what cannot be read."""


def _failed(error: Any) -> BackendError:
    code = error.get("code") if isinstance(error, dict) else None
    return refused(code if isinstance(code, int) else 500, complaint(error))


def _unreadable() -> BackendError:
    return BackendError("The upstream's answer cannot be read.")


def _reason(told: str) -> Reason:
    """Raises ``BackendError`` where the server gave up what it was asked for."""
    if told in GIVEN_UP:
        raise BackendError(f"The upstream ended it: {told}.")
    return "length" if told == "length" else "stop"


# --- vLLM, TensorRT-LLM --------------------------------------------------------------------------


class _Named(Struct):
    token_id: Id
    logprob: float | None = None


class _Content(_Named):
    top_logprobs: list[_Named] = []


class _Logprobs(Struct):
    """``content`` is what ``/inference/v1/generate`` tells, the others ``/v1/completions``."""

    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None
    content: list[_Content] | None = None


class _Choice(Struct):
    token_ids: list[Id] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Completion(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    object: str = ""
    message: str = ""


_decode_completion = msgspec.json.Decoder(_Completion).decode


class VllmPieces:
    """``/v1/completions`` with ``return_token_ids``, and ids in place of the tokens' texts."""

    def __init__(self, asked: StreamRequest) -> None:
        self._asked = asked

    def feed(self, payload: bytes) -> Piece:
        try:
            told = _decode_completion(payload)
        except UNREADABLE:
            raise _unreadable() from None
        if told.error or told.object == "error":
            raise _failed(told.error or {"message": told.message})
        piece = Piece()
        if told.usage is not None:
            piece.prompt = told.usage.prompt_tokens
            if told.usage.prompt_tokens_details is not None:
                piece.cached = told.usage.prompt_tokens_details.cached_tokens
        for choice in told.choices[:1]:  # one was asked for
            piece.tokens = self._tokens(choice)
            if choice.finish_reason is not None:
                piece.reason = _reason(choice.finish_reason)
        return piece

    def _tokens(self, choice: _Choice) -> list[TokenLogprob]:
        ids = choice.token_ids
        if ids is None:
            if choice.finish_reason is None:
                raise BackendError(
                    "The upstream tells no token ids: it is too old, or another.", lasting=True
                )
            ids = []
        most = self._asked.sampling.logprobs
        told = [] if most is None or choice.logprobs is None else self._told(choice.logprobs)
        if len(told) != len(ids):
            return [TokenLogprob(id, UNKNOWN_LOGPROB) for id in ids]
        return [
            TokenLogprob(id, _finite(logprob), _best(others, most or 0))
            for id, (logprob, others) in zip(ids, told, strict=True)
        ]

    def _told(self, told: _Logprobs) -> list[tuple[float | None, Iterable[tuple[int, float]]]]:
        """The log-probability of each token, and those of others in its place."""
        sampled = told.token_logprobs
        tops = told.top_logprobs or [None] * len(sampled)
        if len(tops) != len(sampled):
            return []
        return [(p, _named(top or {})) for p, top in zip(sampled, tops, strict=True)]


class TrtllmPieces(VllmPieces):
    """``trtllm-serve`` with ``detokenize: false``."""


class VllmGeneratePieces(VllmPieces):
    """``/inference/v1/generate``."""

    def _told(self, told: _Logprobs) -> list[tuple[float | None, Iterable[tuple[int, float]]]]:
        return [
            (each.logprob, ((t.token_id, _finite(t.logprob)) for t in each.top_logprobs))
            for each in told.content or ()
        ]


def _named(top: dict[str, float]) -> Iterable[tuple[int, float]]:
    """``token_id:N`` → its log-probability."""
    for name, logprob in top.items():
        number = name.rpartition(":")[2]
        if number.isdecimal() and len(number) < 10:
            yield int(number), logprob


def _best(candidates: Iterable[tuple[int, float]], most: int) -> tuple[Alternative, ...]:
    best = sorted(candidates, key=lambda each: -each[1])[:most]
    return tuple(Alternative(id, max(logprob, UNKNOWN_LOGPROB)) for id, logprob in best)


# --- SGLang --------------------------------------------------------------------------------------

_Told = tuple[float | None, Id, Any]


class _Meta(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: dict[str, Any] | None = None
    output_token_logprobs: list[_Told] | None = None
    output_top_logprobs: list[list[_Told] | None] | None = None


class _Generated(Struct):
    output_ids: list[Id] = []
    meta_info: _Meta | None = None
    error: Any = None


_decode_generated = msgspec.json.Decoder(_Generated).decode


class SglangPieces:
    """``/generate``: each payload has all ids so far, or with ``--incremental-streaming-output``
    the new ones."""

    def __init__(self, asked: StreamRequest) -> None:
        self._asked = asked
        self._seen = 0

    def feed(self, payload: bytes) -> Piece:
        try:
            told = _decode_generated(payload)
        except UNREADABLE:
            raise _unreadable() from None
        if told.error or told.meta_info is None:
            raise _failed(told.error)
        meta = told.meta_info
        count = meta.completion_tokens - self._seen
        self._seen = meta.completion_tokens
        piece = Piece(
            tokens=self._tokens(told.output_ids, meta, count),
            cached=meta.cached_tokens,
            prompt=meta.prompt_tokens,
        )
        if meta.finish_reason is not None:
            kind = meta.finish_reason.get("type")
            if kind == "abort":
                status = meta.finish_reason.get("status_code")
                raise refused(
                    status if isinstance(status, int) else 500, complaint(meta.finish_reason)
                )
            piece.reason = _reason(str(kind))
        return piece

    def _tokens(self, ids: list[int], meta: _Meta, count: int) -> list[TokenLogprob]:
        if count <= 0:
            return []
        new, most = ids[-count:], self._asked.sampling.logprobs
        told = (meta.output_token_logprobs or [])[-count:]
        if most is None or len(told) != len(new):
            return [TokenLogprob(id, UNKNOWN_LOGPROB) for id in new]
        tops: Sequence[list[_Told] | None] = (meta.output_top_logprobs or [])[-count:]
        tops = tops if len(tops) == len(new) else [None] * len(new)
        return [
            TokenLogprob(
                id,
                _finite(logprob),
                _best(((other, p) for p, other, _ in top or () if p is not None), most),
            )
            for id, (logprob, *_), top in zip(new, told, tops, strict=True)
        ]


# --- llama-server --------------------------------------------------------------------------------


class _Candidate(Struct):
    id: Id
    logprob: float | None = None


class _Sampled(_Candidate):
    top_logprobs: list[_Candidate] = []


class _Progress(Struct):
    cache: int = 0
    total: int | None = None


class _Timings(Struct):
    cache_n: int | None = None


class _Completed(Struct):
    content: str = ""
    tokens: list[Id] = []
    tokens_predicted: int = 0
    stop: bool = False
    stop_type: str = ""
    completion_probabilities: list[_Sampled] = []
    prompt_progress: _Progress | None = None
    timings: _Timings | None = None
    error: Any = None


_decode_completed = msgspec.json.Decoder(_Completed).decode


class LlamaPieces:
    """``/completion`` with ``return_tokens``. Of tokens that end within a character it tells only
    the last; the others are found by what they spell."""

    def __init__(self, asked: StreamRequest) -> None:
        self._asked = asked
        self._seen = 0

    def feed(self, payload: bytes) -> Piece:
        try:
            told = _decode_completed(payload)
        except UNREADABLE:
            raise _unreadable() from None
        if told.error:
            raise _failed(told.error)
        if told.prompt_progress is not None:
            progress = told.prompt_progress
            return Piece(cached=progress.cache, prompt=progress.total)
        if told.stop:
            cached = None if told.timings is None else told.timings.cache_n
            reason: Reason = "length" if told.stop_type == "limit" else "stop"
            untold = max(0, min(told.tokens_predicted - self._seen, _MOST_WITHHELD))
            return Piece(reason=reason, untold=untold, cached=cached)
        return Piece(tokens=self._tokens(told))

    def _tokens(self, told: _Completed) -> list[TokenLogprob]:
        ids = told.tokens
        withheld = told.tokens_predicted - self._seen - len(ids)
        self._seen = told.tokens_predicted
        if 0 < withheld <= _MOST_WITHHELD and ids:
            ids = self._asked.withheld.ids(told.content, ids[-1], withheld)
        most = self._asked.sampling.logprobs
        known = told.completion_probabilities if most is not None else []
        unknown = ids[: len(ids) - len(known)]
        return [
            *(TokenLogprob(id, UNKNOWN_LOGPROB) for id in unknown),
            *(
                TokenLogprob(each.id, _finite(each.logprob), _best(_pairs(each), most or 0))
                for each in known
            ),
        ]


def _pairs(sampled: _Sampled) -> Iterable[tuple[int, float]]:
    return ((each.id, _finite(each.logprob)) for each in sampled.top_logprobs)


def _finite(logprob: float | None) -> float:
    return UNKNOWN_LOGPROB if logprob is None else max(logprob, UNKNOWN_LOGPROB)
