"""The official client of the Messages API. Imported where it is used: the import takes seconds,
and each process that collects the tests would pay for it."""

from __future__ import annotations

from typing import Any

from anthropic import APIStatusError, AsyncAnthropic, NotFoundError, beta_async_tool
from anthropic.types import Message
from anthropic.types.beta import (
    BetaContentBlockParam,
    BetaRawMessageStreamEvent,
    BetaToolUnionParam,
)
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from pydantic import TypeAdapter

__all__ = [
    "EVENT",
    "APIStatusError",
    "AsyncAnthropic",
    "BetaContentBlockParam",
    "BetaToolUnionParam",
    "Message",
    "MessageCreateParamsBase",
    "NotFoundError",
    "beta_async_tool",
]

EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
