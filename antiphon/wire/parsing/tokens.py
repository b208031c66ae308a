"""Parse the bodies of ``/tokenize`` and ``/detokenize``, which have vLLM's fields."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from antiphon.errors import unsupported_parameter

from .fields import convert
from .json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object

_MAX_TEXT_CHARS = 10_485_760
_MAX_TOKENS = 1_000_000


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """The body of ``POST /tokenize``."""

    prompt: Annotated[str, Meta(max_length=_MAX_TEXT_CHARS)]
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """The body of ``POST /detokenize``."""

    tokens: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...], Meta(max_length=_MAX_TOKENS)
    ]
    model: str | None = None


def parse_tokenize(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> TokenizeRequest:
    """Parse the body of ``POST /tokenize``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits)
    if "messages" in raw:
        raise unsupported_parameter(
            "messages", " Use /v1/responses/input_tokens for conversations."
        )
    request = convert(raw, TokenizeRequest, "")
    if not request.add_special_tokens:
        raise unsupported_parameter("add_special_tokens")
    return request
