"""What several runs used, as one answer tells it: a prompt is read once, however often it is
answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from antiphon.wire.response import Response
from antiphon.wire.response import Usage as Used

__all__ = ["Usage", "usage"]

Json = dict[str, Any]


class Usage(Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Json
    completion_tokens_details: Json


def usage(responses: Sequence[Response], n: int = 1) -> Usage:
    """``n``: how many in a row answer the same prompt."""
    used = [response.usage or Used() for response in responses]
    read = used[::n]
    prompt = sum(one.input_tokens for one in read)
    said = sum(one.output_tokens for one in used)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=said,
        total_tokens=prompt + said,
        prompt_tokens_details={
            "cached_tokens": sum(one.input_tokens_details.cached_tokens for one in read)
        },
        completion_tokens_details={
            "reasoning_tokens": sum(one.output_tokens_details.reasoning_tokens for one in used)
        },
    )
