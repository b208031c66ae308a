"""llama.cpp's endpoint ``/completion``: the fields of its requests, and what its events say.

The embedded engine uses it, and so does the engine for a llama-server that runs elsewhere. Sans-IO.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Struct

from antiphon.engines.base import Sampling
from antiphon.engines.common.logprobs import UNKNOWN_LOGPROB, finite, top_alternatives
from antiphon.engines.common.request_checks import requested_values
from antiphon.engines.common.stop_conditions import EngineOutput
from antiphon.inference.tokens import TokenLogprob

from .partial_tokens import PartialTokens

#: A valid token id.
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

_RANDOM_SEED = 0xFFFFFFFF  # llama.cpp replaces this value by a random seed
#: The largest number of tokens that llama.cpp withholds because they end inside a character.
_MAX_WITHHELD = 8


def completion_fields(sampling: Sampling) -> dict[str, Any]:
    """Return the fields of a streamed request, without the prompt and the constraint."""
    fields: dict[str, Any] = {
        "n_predict": sampling.max_tokens,
        "stream": True,
        # Also sends events during prompt processing. They report the cached tokens before the first
        # token, and let the request be aborted.
        "return_progress": True,
        "return_tokens": True,
        "ignore_eos": sampling.ignore_eos,
    }
    # For other values, the defaults of the file (``general.sampling.*``) or of llama.cpp apply.
    for name, value in requested_values(sampling).items():
        fields["repeat_penalty" if name == "repetition_penalty" else name] = value
    if sampling.seed is not None:
        fields["seed"] = sampling.seed % _RANDOM_SEED
    if sampling.logit_bias:
        fields["logit_bias"] = list(sampling.logit_bias.items())
    if sampling.logprobs is not None:
        fields["n_probs"] = max(1, sampling.logprobs)
    return fields


class _Candidate(Struct):
    id: TokenId
    logprob: float | None = None


class _Sampled(_Candidate):
    top_logprobs: list[_Candidate] = []


class PromptProgress(Struct):
    """How much of the prompt is computed. ``cache``: tokens taken from the cache."""

    cache: int = 0
    processed: int = 0
    total: int | None = None


class _Timings(Struct):
    cache_n: int | None = None


class CompletionEvent(Struct):
    """An event of a response. It declares only the fields that are used."""

    content: str = ""
    tokens: list[TokenId] = []
    tokens_predicted: int = 0
    stop: bool = False
    stop_type: str = ""
    completion_probabilities: list[_Sampled] = []
    prompt_progress: PromptProgress | None = None
    timings: _Timings | None = None
    error: Any = None


decode_event = msgspec.json.Decoder(CompletionEvent).decode


class CompletionReader:
    """Reads the events of one response. If one character consists of several tokens, llama.cpp
    reports only the id of the last one. ``partial_tokens`` recovers the other ids from the text."""

    def __init__(self, partial_tokens: PartialTokens, sampling: Sampling) -> None:
        self._partial_tokens = partial_tokens
        self._top_count = sampling.logprobs
        self._token_count = 0

    def read(self, event: CompletionEvent) -> EngineOutput:
        """Return what an event reports, if it reports no error."""
        if event.prompt_progress is not None:
            progress = event.prompt_progress
            return EngineOutput(cached_tokens=progress.cache, prompt_tokens=progress.total)
        if event.stop:
            # The ids of an incomplete character are withheld, so they are only counted.
            withheld = event.tokens_predicted - self._token_count
            return EngineOutput(
                reason="length" if event.stop_type == "limit" else "stop",
                unreported_tokens=max(0, min(withheld, _MAX_WITHHELD)),
                cached_tokens=None if event.timings is None else event.timings.cache_n,
            )
        return EngineOutput(self._tokens(event))

    def _tokens(self, event: CompletionEvent) -> list[TokenLogprob]:
        """Return the tokens of an event. Tokens that were withheld until now come first."""
        ids = event.tokens
        withheld = event.tokens_predicted - self._token_count - len(ids)
        self._token_count = event.tokens_predicted
        if 0 < withheld <= _MAX_WITHHELD and ids:
            ids = self._partial_tokens.recover(event.content, ids[-1], withheld)
        known = event.completion_probabilities if self._top_count is not None else []
        return [
            *(TokenLogprob(id, UNKNOWN_LOGPROB) for id in ids[: len(ids) - len(known)]),
            *map(self._logprob, known),
        ]

    def _logprob(self, sampled: _Sampled) -> TokenLogprob:
        others = ((each.id, each.logprob) for each in sampled.top_logprobs)
        return TokenLogprob(
            sampled.id, finite(sampled.logprob), top_alternatives(others, self._top_count)
        )
