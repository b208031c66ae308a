"""The official client of the Messages API. Imported where it is used: the import takes seconds,
and each process that collects the tests would pay for it."""

from __future__ import annotations

from typing import Any, get_args

from anthropic import APIStatusError, AsyncAnthropic, NotFoundError, beta_async_tool
from anthropic.types import Message
from anthropic.types.beta import (
    BetaBrowserToolUseBlock,
    BetaComputerToolUseBlock,
    BetaContentBlockParam,
    BetaFileMetadata,
    BetaMessage,
    BetaRawMessageStreamEvent,
    BetaSkill,
    BetaToolUnionParam,
)
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from anthropic.types.beta.skills import BetaSkillVersion
from pydantic import TypeAdapter

__all__ = [
    "EVENT",
    "TOOLSET_MEMBERS",
    "APIStatusError",
    "AsyncAnthropic",
    "BetaContentBlockParam",
    "BetaFileMetadata",
    "BetaMessage",
    "BetaSkill",
    "BetaSkillVersion",
    "BetaToolUnionParam",
    "Message",
    "MessageCreateParamsBase",
    "NotFoundError",
    "beta_async_tool",
]


def _members(union: Any) -> dict[str, dict[str, bool]]:
    """The tools of a toolset: their names, and the names of their inputs with whether each is
    required."""
    blocks = get_args(get_args(union)[0])
    return {
        get_args(block.model_fields["name"].annotation)[0]: {
            field.alias or name: field.is_required()
            for name, field in block.model_fields["input"].annotation.model_fields.items()
        }
        for block in blocks
    }


TOOLSET_MEMBERS = {
    "browser": _members(BetaBrowserToolUseBlock),
    "computer": _members(BetaComputerToolUseBlock),
}
EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
