"""The chunks of a Chat Completions stream, as typed values. Every field may be missing or null.

What many servers send besides is left out; what some send in another form is allowed for here.
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
    "NOTHING",
    "REASONS",
    "Call",
    "Choice",
    "Chunk",
    "Delta",
    "Function",
    "Used",
    "decode",
    "logprobs_of",
    "sampled_at",
    "usage_of",
    "used_in",
]


class Function(Struct):
    """``arguments`` is text by the specification; Ollama's older versions send the object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class Call(Struct):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Delta(Struct):
    """``reasoning_content`` is DeepSeek's name for thinking, ``reasoning`` OpenRouter's; vLLM has
    had both. ``content`` as parts is Mistral's."""

    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | dict[str, Any] | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[Call] | None = None
    function_call: Function | None = None


class _Alternative(Struct):
    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None


class _Sampled(_Alternative):
    top_logprobs: list[_Alternative] | None = None


class _Logprobs(Struct):
    content: list[_Sampled] | None = None


class Choice(Struct):
    """``message`` stands in place of ``delta`` where the answer was not streamed after all."""

    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _CompletionDetails(Struct):
    reasoning_tokens: int | None = None


class Used(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None  # DeepSeek


#: Stands for what a chunk does not say.
NOTHING = msgspec.Raw(b"null")


class _Timings(Struct):
    predicted_n: int | None = None


class Chunk(Struct):
    """``timings`` are llama-server's. A ``usage`` that cannot be read is none: it is no reason to
    lose an answer."""

    choices: list[Choice] | None = None
    usage: msgspec.Raw = NOTHING
    timings: _Timings | None = None
    error: Any = None
    #: Some say "error" by an object of this kind, with the message at the top.
    object: str | None = None
    message: str | None = None


decode = msgspec.json.Decoder(Chunk).decode
_decode_used = msgspec.json.Decoder(Used | None).decode


def used_in(chunk: Chunk) -> Used | None:
    """What the chunk says was used."""
    try:
        return None if chunk.usage is NOTHING else _decode_used(chunk.usage)
    except msgspec.MsgspecError:
        return None


def sampled_at(chunk: Chunk, told: Used | None) -> int | None:
    """How many tokens had been sampled when the chunk was sent, where its server counts along."""
    if not chunk.choices:
        return None
    if chunk.timings is not None:
        return chunk.timings.predicted_n
    return None if told is None else told.completion_tokens


def logprobs_of(choice: Choice) -> tuple[Logprob, ...]:
    """Log-probabilities of the tokens of this chunk."""
    told = choice.logprobs
    if told is None or not told.content:
        return ()
    return tuple(
        Logprob(
            token=each.token,
            logprob=_finite(each.logprob),
            bytes=_bytes(each),
            top_logprobs=tuple(
                TopLogprob(token=other.token, logprob=_finite(other.logprob), bytes=_bytes(other))
                for other in each.top_logprobs or ()
            ),
        )
        for each in told.content
    )


def _finite(logprob: float | None) -> float:
    return -9999.0 if logprob is None else max(logprob, -9999.0)


def _bytes(each: _Alternative) -> tuple[int, ...]:
    return tuple(each.token.encode() if each.bytes is None else each.bytes)


def usage_of(told: Used | None, given: int, said: int, thought: int = 0) -> Usage:
    """What was used; ``given`` and ``said`` are estimates for an upstream that does not tell.
    ``thought``: tokens of thinking that were counted along the way."""
    told = told or Used()
    prompt = given if told.prompt_tokens is None else told.prompt_tokens
    answer = said if told.completion_tokens is None else told.completion_tokens
    details = told.prompt_tokens_details
    cached = (details and details.cached_tokens) or told.prompt_cache_hit_tokens or 0
    inner = told.completion_tokens_details
    thought = (inner and inner.reasoning_tokens) or thought
    return upstream_usage(prompt, answer, cached_tokens=cached, reasoning_tokens=thought)


#: Why it ended, by the many names there are; what is not here means that the model was done.
REASONS: Mapping[str, str] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
}
