"""The types of the chunks in a Chat Completions stream. Every field may be missing or null.

Unknown fields are ignored. Known deviations from OpenAI's API are accepted. A chunk is made for
each token and has no cycles, so the garbage collector need not know it (``gc=False``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.backends.base import upstream_usage
from antiphon.wire.items import Logprob, TopLogprob
from antiphon.wire.json_types import JsonObject
from antiphon.wire.response import Usage


class CalledFunction(Struct, gc=False):
    """The called function in a piece of a tool call.

    By the specification, ``arguments`` is text. Older versions of Ollama send an object.
    """

    name: str | None = None
    arguments: str | JsonObject | None = None


class Call(Struct, gc=False):
    """A piece of a tool call. By the specification, the index is a number and the id is text."""

    index: int | str | None = None
    id: str | int | None = None
    function: CalledFunction | None = None


class ChunkDelta(Struct, gc=False):
    """The new content in a chunk.

    DeepSeek sends reasoning as ``reasoning_content``, and OpenRouter sends it as ``reasoning``.
    vLLM has used both names. Mistral sends ``content`` as a list of parts.
    """

    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | JsonObject | None = None
    reasoning_details: list[JsonObject] | None = None
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


class ChunkChoice(Struct, gc=False):
    """A choice in a chunk.

    ``message``: the whole answer, instead of ``delta``, if the upstream did not stream the answer.
    ``stop_reason`` (vLLM) and ``matched_stop`` (SGLang): the stop string or the token id that ended
    the answer.
    """

    index: int | None = None
    delta: ChunkDelta | None = None
    message: ChunkDelta | None = None
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
MISSING_FIELD = msgspec.Raw(b"null")


class _Timings(Struct):
    predicted_n: int | None = None


class UpstreamChunk(Struct, gc=False):
    """One chunk of the stream.

    Only llama-server sends ``timings``. ``usage`` is parsed separately from the chunk. So an
    unreadable ``usage`` is ignored, and the rest of the chunk is still read.
    """

    choices: list[ChunkChoice] | None = None
    usage: msgspec.Raw = MISSING_FIELD
    timings: _Timings | None = None
    error: Any = None
    #: Some servers report an error with ``object: "error"`` and the text in ``message``.
    object: str | None = None
    message: str | None = None


decode = msgspec.json.Decoder(UpstreamChunk).decode
_decode_usage = msgspec.json.Decoder(ReportedUsage | None).decode


def usage_in(chunk: UpstreamChunk) -> ReportedUsage | None:
    """Return the usage that the chunk reports, or None if it reports no readable usage."""
    try:
        return None if chunk.usage is MISSING_FIELD else _decode_usage(chunk.usage)
    except msgspec.MsgspecError:
        return None


def sampled_token_count(chunk: UpstreamChunk, reported: ReportedUsage | None) -> int | None:
    """Return the number of tokens that the upstream had sampled when it sent the chunk, or None if
    this number is not reported. ``reported``: the usage in the chunk, or None."""
    if not chunk.choices:
        return None
    if chunk.timings is not None:
        return chunk.timings.predicted_n
    return None if reported is None else reported.completion_tokens


def logprobs_of(choice: ChunkChoice) -> tuple[Logprob, ...]:
    """Return the log-probabilities of the tokens in this choice. Return an empty tuple if the
    upstream did not send them."""
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
    """Return the token usage of a reply.

    ``reported``: the usage that the upstream reports, or None. The other arguments are used for
    numbers that the upstream does not report. ``input_tokens`` and ``output_tokens`` are estimates.
    ``reasoning_tokens`` was counted while the reply streamed.
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


#: An upstream's finish reason → the finish reason in Antiphon. Every other name means ``stop``.
FINISH_REASONS: Mapping[str, str] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
}
