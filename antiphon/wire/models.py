"""The list of models: entries in OpenAI's format, and entries in the format of the model catalog
that the client Codex reads."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

__all__ = [
    "CodexModel",
    "ModelEntry",
    "ModelList",
    "ModelStatus",
    "ReasoningLevel",
    "TruncationPolicy",
]


class ModelStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the model can answer immediately.

    While the model loads, ``stage`` names the current step. ``bytes`` is the number of bytes
    loaded so far. ``total_bytes`` is the total number of bytes, if it is known.
    """

    value: str
    stage: str = ""
    bytes: int = 0
    total_bytes: int | None = None


class ModelEntry(Struct, frozen=True, kw_only=True):
    """A model, or one of its aliases.

    ``input_modalities``: the kinds of input that the model reads: ``text``, or ``text`` and
    ``image``. The field is absent while the model is not loaded, and for models that generate no
    text. ``task``: the only task of a model that does not answer conversations.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "antiphon"
    status: ModelStatus
    input_modalities: tuple[Literal["text", "image"], ...] | UnsetType = UNSET
    task: (
        Literal["embeddings", "moderation", "reranking", "transcription", "speech"] | UnsetType
    ) = UNSET


class TruncationPolicy(Struct, frozen=True, kw_only=True):
    """The maximum length of a tool's output, in tokens or bytes. The client Codex shortens longer
    output."""

    mode: Literal["tokens", "bytes"] = "tokens"
    limit: int = 10_000


class ReasoningLevel(Struct, frozen=True, kw_only=True):
    """A reasoning effort that a user of Codex can choose."""

    effort: Literal["low", "medium", "high"]
    description: str


class CodexModel(Struct, frozen=True, kw_only=True):
    """A model in the model catalog that the client Codex (version 0.169) reads. It has the fields
    that Codex requires, and the optional fields for the patch tool, the context window and the
    inputs. Codex sends no images to a model whose ``input_modalities`` lack them.
    ``supported_reasoning_levels`` is empty if the model does not reason."""

    slug: str
    display_name: str
    supported_reasoning_levels: tuple[ReasoningLevel, ...] = ()
    shell_type: str = "unified_exec"
    visibility: str = "list"
    supported_in_api: bool = True
    priority: int
    support_verbosity: bool = False
    truncation_policy: TruncationPolicy = TruncationPolicy()
    experimental_supported_tools: tuple[str, ...] = ()
    apply_patch_tool_type: str = "freeform"
    supports_search_tool: bool = False
    base_instructions: str
    context_window: int | UnsetType = UNSET
    input_modalities: tuple[Literal["text", "image"], ...] | UnsetType = UNSET


class ModelList(Struct, frozen=True, kw_only=True):
    """All models under all their names: ``data`` for OpenAI's clients, ``models`` for Codex."""

    object: Literal["list"] = "list"
    data: tuple[ModelEntry, ...]
    models: tuple[CodexModel, ...]
