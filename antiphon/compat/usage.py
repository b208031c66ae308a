"""Token usage of an answer of the Chat Completions API or the Completions API. Each choice of the
answer comes from a response of its own, so the usage of these responses is added up."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from antiphon.wire.response import Response, Usage


class PromptTokensDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class CompletionTokensDetails(Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class CompletionUsage(Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def total_usage(responses: Sequence[Response], n: int = 1) -> CompletionUsage:
    """Add up the token usage of ``responses``.

    Each group of ``n`` consecutive responses answers the same prompt. The tokens of this prompt are
    counted once.
    """
    usages = [response.usage or Usage() for response in responses]
    prompts = usages[::n]
    prompt = sum(one.input_tokens for one in prompts)
    details = [one.input_tokens_details for one in prompts]
    completion = sum(one.output_tokens for one in usages)
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(one.cached_tokens for one in details),
            cache_write_tokens=sum(one.cache_write_tokens for one in details),
        ),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=sum(one.output_tokens_details.reasoning_tokens for one in usages)
        ),
    )
