"""Parsers for the response streams of upstream servers. Sans-IO.

Each kind of server, such as vLLM, has its own parser. The module ``servers`` lists the kinds of
server. A parser extracts tokens, finish reasons and token counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from antiphon.engines.base import Sampling
from antiphon.engines.common.logprobs import UNKNOWN_LOGPROB, finite, top_alternatives
from antiphon.engines.common.stop_conditions import EngineOutput, Reason
from antiphon.engines.llama.completion import CompletionReader, TokenId, decode_event
from antiphon.engines.llama.partial_tokens import PartialTokens
from antiphon.errors import BackendError
from antiphon.inference.tokens import Prompt, TokenLogprob
from antiphon.upstream.errors import ABORT_REASONS, parse_error, upstream_error

_T = TypeVar("_T")
#: Exceptions that decoding JSON from a server can raise.
DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class StreamRequest(Struct, frozen=True, kw_only=True):
    """One request to continue a prompt. ``constraint_fields``: the fields that state the request's
    constraint in the server's syntax."""

    model: str
    prompt: Prompt
    sampling: Sampling
    partial_tokens: PartialTokens
    constraint_fields: Mapping[str, Any] = {}


class CompletionsStreamParser(Protocol):
    """Parses one response stream."""

    def feed(self, payload: bytes) -> EngineOutput:
        """Parse one payload, which is one event of the stream. Raises ``BackendError`` if the
        event reports an error or cannot be read."""


def _server_error(error: Any) -> BackendError:
    code = error.get("code") if isinstance(error, dict) else None
    return upstream_error(code if isinstance(code, int) else 500, parse_error(error))


def _decoded(decode: Callable[[bytes], _T], payload: bytes) -> _T:
    try:
        return decode(payload)
    except DECODE_ERRORS:
        raise BackendError("The upstream's answer cannot be read.") from None


def _finish_reason(reason: str) -> Reason:
    """Return the server's finish reason as ``stop`` or ``length``. Raises ``BackendError`` if the
    server aborted the generation."""
    if reason in ABORT_REASONS:
        raise BackendError(f"The upstream ended the generation: {reason}.")
    return "length" if reason == "length" else "stop"


# --- vLLM, TensorRT-LLM --------------------------------------------------------------------------


class _TokenEntry(Struct):
    token_id: TokenId
    logprob: float | None = None


class _TokenContent(_TokenEntry):
    top_logprobs: list[_TokenEntry] = []


class _Logprobs(Struct):
    """Log-probabilities from vLLM. ``/inference/v1/generate`` sends only ``content``, and
    ``/v1/completions`` sends only the other fields."""

    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None
    content: list[_TokenContent] | None = None


class _Choice(Struct):
    token_ids: list[TokenId] | None = None
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


#: Tokens, as pairs of an id and a log-probability.
_Candidates = Iterable[tuple[int, float | None]]

_decode_completion = msgspec.json.Decoder(_Completion).decode


class VllmParser:
    """Parses responses of vLLM's ``/v1/completions``, and of ``trtllm-serve``. A request to vLLM
    must set ``return_token_ids``, and for log-probabilities also ``return_tokens_as_token_ids``. A
    request to ``trtllm-serve`` must set ``detokenize: false``."""

    def __init__(self, request: StreamRequest) -> None:
        self._request = request

    def feed(self, payload: bytes) -> EngineOutput:
        event = _decoded(_decode_completion, payload)
        if event.error or event.object == "error":
            raise _server_error(event.error or {"message": event.message})
        piece = EngineOutput()
        if event.usage is not None:
            piece.prompt_tokens = event.usage.prompt_tokens
            if event.usage.prompt_tokens_details is not None:
                piece.cached_tokens = event.usage.prompt_tokens_details.cached_tokens
        for choice in event.choices[:1]:  # one choice was requested
            piece.tokens = self._tokens(choice)
            if choice.finish_reason is not None:
                piece.reason = _finish_reason(choice.finish_reason)
        return piece

    def _tokens(self, choice: _Choice) -> list[TokenLogprob]:
        ids = choice.token_ids
        if ids is None:
            if choice.finish_reason is None:
                raise BackendError(
                    "The upstream returns no token ids: its version is too old, or it is another"
                    " kind of server.",
                    permanent=True,
                )
            ids = []
        top_count = self._request.sampling.logprobs
        logprobs = (
            [] if top_count is None or choice.logprobs is None else self._logprobs(choice.logprobs)
        )
        if len(logprobs) != len(ids):
            return [TokenLogprob(id, UNKNOWN_LOGPROB) for id in ids]
        return [
            TokenLogprob(id, finite(logprob), top_alternatives(others, top_count))
            for id, (logprob, others) in zip(ids, logprobs, strict=True)
        ]

    def _logprobs(self, logprobs: _Logprobs) -> list[tuple[float | None, _Candidates]]:
        """Return each token's log-probability and its alternatives (id, log-probability)."""
        sampled = logprobs.token_logprobs
        tops = logprobs.top_logprobs or [None] * len(sampled)
        if len(tops) != len(sampled):
            return []
        return [(p, _named_logprobs(top or {})) for p, top in zip(sampled, tops, strict=True)]


class VllmGenerateParser(VllmParser):
    """Parses responses of vLLM's ``/inference/v1/generate``."""

    def _logprobs(self, logprobs: _Logprobs) -> list[tuple[float | None, _Candidates]]:
        return [
            (each.logprob, ((t.token_id, t.logprob) for t in each.top_logprobs))
            for each in logprobs.content or ()
        ]


def _named_logprobs(top: dict[str, float]) -> _Candidates:
    """Yield the token id and the log-probability of each entry of ``top``. The keys of ``top`` look
    like ``token_id:42``, where 42 is the token id."""
    for name, logprob in top.items():
        number = name.rpartition(":")[2]
        if number.isdecimal() and len(number) < 10:
            yield int(number), logprob


# --- SGLang --------------------------------------------------------------------------------------

_SglangLogprob = tuple[float | None, TokenId, Any]


class _SglangMeta(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: dict[str, Any] | None = None
    output_token_logprobs: list[_SglangLogprob] | None = None
    output_top_logprobs: list[list[_SglangLogprob] | None] | None = None


class _SglangEvent(Struct):
    output_ids: list[TokenId] = []
    meta_info: _SglangMeta | None = None
    error: Any = None


_decode_sglang = msgspec.json.Decoder(_SglangEvent).decode


class SglangParser:
    """Parses responses of SGLang's ``/generate``.

    Each payload holds all ids that were sampled so far. If the server runs with
    ``--incremental-streaming-output``, a payload holds only the new ids. The parser handles both
    forms.
    """

    def __init__(self, request: StreamRequest) -> None:
        self._request = request
        self._token_count = 0

    def feed(self, payload: bytes) -> EngineOutput:
        event = _decoded(_decode_sglang, payload)
        if event.error or event.meta_info is None:
            raise _server_error(event.error)
        meta = event.meta_info
        count = meta.completion_tokens - self._token_count
        self._token_count = meta.completion_tokens
        piece = EngineOutput(
            tokens=self._tokens(event.output_ids, meta, count),
            cached_tokens=meta.cached_tokens,
            prompt_tokens=meta.prompt_tokens,
        )
        if meta.finish_reason is not None:
            kind = meta.finish_reason.get("type")
            if kind == "abort":
                status = meta.finish_reason.get("status_code")
                raise upstream_error(
                    status if isinstance(status, int) else 500, parse_error(meta.finish_reason)
                )
            piece.reason = _finish_reason(str(kind))
        return piece

    def _tokens(self, ids: list[int], meta: _SglangMeta, count: int) -> list[TokenLogprob]:
        if count <= 0:
            return []
        new, top_count = ids[-count:], self._request.sampling.logprobs
        logprobs = (meta.output_token_logprobs or [])[-count:]
        if top_count is None or len(logprobs) != len(new):
            return [TokenLogprob(id, UNKNOWN_LOGPROB) for id in new]
        tops: Sequence[list[_SglangLogprob] | None] = (meta.output_top_logprobs or [])[-count:]
        tops = tops if len(tops) == len(new) else [None] * len(new)
        return [
            TokenLogprob(
                id,
                finite(logprob),
                top_alternatives(
                    ((other, p) for p, other, _ in top or () if p is not None), top_count
                ),
            )
            for id, (logprob, *_), top in zip(new, logprobs, tops, strict=True)
        ]


# --- llama-server --------------------------------------------------------------------------------


class LlamaParser:
    """Parses responses of llama-server's ``/completion``."""

    def __init__(self, request: StreamRequest) -> None:
        self._reader = CompletionReader(request.partial_tokens, request.sampling)

    def feed(self, payload: bytes) -> EngineOutput:
        event = _decoded(decode_event, payload)
        if event.error:
            raise _server_error(event.error)
        return self._reader.read(event)
