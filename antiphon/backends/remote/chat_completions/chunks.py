"""The chunks of a Chat Completions stream, as typed values. Every field may be missing or null.

Extra fields of servers are ignored; known deviations from the standard are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.backends.base import upstream_usage
from antiphon.wire.items import Logprob, TopLogprob
from antiphon.wire.response import Usage

__all__ = [
    "FINISH_REASONS",
    "MISSING",
    "Call",
    "CalledFunction",
    "ChunkChoice",
    "Delta",
    "ReportedUsage",
    "UpstreamChunk",
    "decode",
    "logprobs_of",
    "sampled_token_count",
    "usage_in",
    "usage_of",
]


class CalledFunction(Struct):
    """``arguments`` is text by the specification; older versions of Ollama send an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class Call(Struct):
    index: int | None = None
    id: str | None = None
    function: CalledFunction | None = None


class Delta(Struct):
    """``reasoning_content`` is DeepSeek's field for reasoning, ``reasoning`` OpenRouter's; vLLM has
    used both. Mistral sends ``content`` as parts.
    """

    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | dict[str, Any] | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[Call] | None = None
    function_call: CalledFunction | None = None


class _Alternative(Struct):
    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None


class _Sampled(_Alternative):
    top_logprobs: list[_Alternative] | None = None


class _Logprobs(Struct):
    content: list[_Sampled] | None = None


class ChunkChoice(Struct):
    """``message`` replaces ``delta`` if the server did not stream the answer.

    ``stop_reason`` (vLLM) and ``matched_stop`` (SGLang): the stop string or the token id that ended
    the answer.
    """

    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    matched_stop: Any = None
    logprobs: _Logprobs | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _CompletionDetails(Struct):
    reasoning_tokens: int | None = None


class ReportedUsage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None  # DeepSeek


#: The value of a missing field.
MISSING = msgspec.Raw(b"null")


class _Timings(Struct):
    predicted_n: int | None = None


class UpstreamChunk(Struct):
    """``timings`` is llama-server's. A ``usage`` that cannot be parsed is ignored, so that the
    answer is not lost.
    """

    choices: list[ChunkChoice] | None = None
    usage: msgspec.Raw = MISSING
    timings: _Timings | None = None
    error: Any = None
    #: Some servers report an error as ``object: "error"`` with ``message`` beside it.
    object: str | None = None
    message: str | None = None


decode = msgspec.json.Decoder(UpstreamChunk).decode
_decode_usage = msgspec.json.Decoder(ReportedUsage | None).decode


def usage_in(chunk: UpstreamChunk) -> ReportedUsage | None:
    """The usage that the chunk reports."""
    try:
        return None if chunk.usage is MISSING else _decode_usage(chunk.usage)
    except msgspec.MsgspecError:
        return None


def sampled_token_count(chunk: UpstreamChunk, reported: ReportedUsage | None) -> int | None:
    """How many tokens had been sampled when the chunk was sent; None if the server does not report
    it."""
    if not chunk.choices:
        return None
    if chunk.timings is not None:
        return chunk.timings.predicted_n
    return None if reported is None else reported.completion_tokens


def logprobs_of(choice: ChunkChoice) -> tuple[Logprob, ...]:
    """Log-probabilities of the tokens of this chunk."""
    reported = choice.logprobs
    if reported is None or not reported.content:
        return ()
    return tuple(
        Logprob(
            token=each.token,
            logprob=_clamped(each.logprob),
            bytes=_bytes(each),
            top_logprobs=tuple(
                TopLogprob(token=other.token, logprob=_clamped(other.logprob), bytes=_bytes(other))
                for other in each.top_logprobs or ()
            ),
        )
        for each in reported.content
    )


def _clamped(logprob: float | None) -> float:
    return -9999.0 if logprob is None else max(logprob, -9999.0)


def _bytes(each: _Alternative) -> tuple[int, ...]:
    return tuple(each.token.encode() if each.bytes is None else each.bytes)


def usage_of(
    reported: ReportedUsage | None, input_tokens: int, output_tokens: int, reasoning_tokens: int = 0
) -> Usage:
    """Token usage of a reply. ``input_tokens`` and ``output_tokens``: estimates for an upstream
    that reports no usage. ``reasoning_tokens``: as counted while the reply streamed.
    """
    reported = reported or ReportedUsage()
    prompt_tokens = input_tokens if reported.prompt_tokens is None else reported.prompt_tokens
    completion_tokens = (
        output_tokens if reported.completion_tokens is None else reported.completion_tokens
    )
    prompt_details = reported.prompt_tokens_details
    cached_tokens = (
        (prompt_details and prompt_details.cached_tokens) or reported.prompt_cache_hit_tokens or 0
    )
    output_details = reported.completion_tokens_details
    reasoning_tokens = (output_details and output_details.reasoning_tokens) or reasoning_tokens
    return upstream_usage(
        prompt_tokens,
        completion_tokens,
        cached_tokens=cached_tokens,
        reasoning_tokens=reasoning_tokens,
    )


#: Servers' names of finish reasons → ours. Every other name means ``stop``.
FINISH_REASONS: Mapping[str, str] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
}
