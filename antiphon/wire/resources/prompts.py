"""Stored prompts: the request that creates a prompt, and the prompt as the API shows it."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.wire.json_types import JsonObject
from antiphon.wire.response import PromptRef, PromptValue

__all__ = ["TEMPLATE_FIELDS", "CreatePrompt", "PromptRef", "PromptResource", "PromptValue"]


#: The fields of a request that a stored prompt may set.
TEMPLATE_FIELDS: tuple[str, ...] = (
    "model",
    "instructions",
    "input",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tool_calls",
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_logprobs",
    "text",
    "reasoning",
    "truncation",
    "context_management",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "logit_bias",
    "chat_template_kwargs",
)


class CreatePrompt(Struct, frozen=True, kw_only=True):
    """A request to store a prompt. With ``id``, it creates a new version of this prompt. Without
    ``id``, it creates a new prompt.

    ``template``: the request fields that the prompt sets, as the client sent them. They are already
    validated.
    """

    template: JsonObject
    id: str | None = None


class PromptResource(Struct, frozen=True, kw_only=True):
    """One version of a prompt.

    ``variables``: names of the placeholders in the texts of the prompt. ``versions``: all versions
    of the prompt, oldest first. Entries in a list of prompts omit ``variables`` and ``template``.
    """

    id: str
    version: str
    versions: tuple[str, ...]
    object: Literal["prompt"] = "prompt"
    variables: tuple[str, ...] | UnsetType = UNSET
    template: JsonObject | UnsetType = UNSET
