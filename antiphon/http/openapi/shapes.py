"""The shapes of objects that the wire types pass on as they are, such as the action of a call. Only
the OpenAPI document needs them.

A field that is not in ``SHAPES`` has a free object, such as a JSON schema, or arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.compat.decisions import DecisionBody
from antiphon.compat.embeddings import EmbeddingList
from antiphon.compat.images import ImageEvent, ImagesAnswer
from antiphon.compat.messages.bodies import (
    CountTokensFields,
    MessageBlock,
    MessageMcpServer,
    MessagesFields,
    MessageTool,
)
from antiphon.compat.request_bodies import ChatPart
from antiphon.compat.usage import CompletionUsage
from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire import parts, response, steering, tools
from antiphon.wire.request import CreateResponse
from antiphon.wire.request_options import PromptCacheRequest


class _Shape(Struct, frozen=True, kw_only=True):
    """Base class of the shapes."""


class AgentName(_Shape, frozen=True, kw_only=True):
    agent_name: str


class PatchOperation(_Shape, frozen=True, kw_only=True):
    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | UnsetType = UNSET


class CodeOutput(_Shape, frozen=True, kw_only=True):
    type: Literal["logs", "image"]
    logs: str | UnsetType = UNSET
    url: str | UnsetType = UNSET


class SafetyCheck(_Shape, frozen=True, kw_only=True):
    id: str
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET


class Coordinates(_Shape, frozen=True, kw_only=True):
    x: int
    y: int


class ComputerAction(_Shape, frozen=True, kw_only=True):
    type: str
    x: int | UnsetType = UNSET
    y: int | UnsetType = UNSET
    button: str | UnsetType = UNSET
    keys: tuple[str, ...] | UnsetType = UNSET
    path: tuple[Coordinates, ...] | UnsetType = UNSET
    scroll_x: int | UnsetType = UNSET
    scroll_y: int | UnsetType = UNSET
    text: str | UnsetType = UNSET


class FoundPassage(_Shape, frozen=True, kw_only=True):
    file_id: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET
    score: float | UnsetType = UNSET
    text: str | UnsetType = UNSET
    attributes: dict[str, Any] | UnsetType = UNSET


class SearchFilter(_Shape, frozen=True, kw_only=True):
    """A comparison of an attribute, or filters that are joined by ``and`` or ``or``."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "and", "or"]
    key: str | UnsetType = UNSET
    value: str | float | bool | tuple[str | float, ...] | UnsetType = UNSET
    filters: tuple[SearchFilter, ...] | UnsetType = UNSET


class HybridSearch(_Shape, frozen=True, kw_only=True):
    embedding_weight: float
    text_weight: float


class ResultRanking(_Shape, frozen=True, kw_only=True):
    ranker: str | UnsetType = UNSET
    score_threshold: float | UnsetType = UNSET
    hybrid_search: HybridSearch | UnsetType = UNSET


class ImageReference(_Shape, frozen=True, kw_only=True):
    file_id: str | UnsetType = UNSET
    image_url: str | UnsetType = UNSET


class AudioData(_Shape, frozen=True, kw_only=True):
    data: str
    format: str


class UrlReference(_Shape, frozen=True, kw_only=True):
    url: str
    detail: str | UnsetType = UNSET


class ChatFile(_Shape, frozen=True, kw_only=True):
    file_id: str | UnsetType = UNSET
    file_data: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET


class LocalCommand(_Shape, frozen=True, kw_only=True):
    type: Literal["exec"]
    command: tuple[str, ...]
    env: dict[str, str] = {}
    timeout_ms: int | UnsetType = UNSET
    user: str | UnsetType = UNSET
    working_directory: str | UnsetType = UNSET


class ShellAction(_Shape, frozen=True, kw_only=True):
    commands: tuple[str, ...]
    timeout_ms: int | UnsetType | None = UNSET
    max_output_length: int | UnsetType | None = UNSET


class EnvironmentNetwork(_Shape, frozen=True, kw_only=True):
    type: Literal["disabled", "allowlist"]
    allowed_domains: tuple[str, ...] | UnsetType = UNSET
    domain_secrets: tuple[dict[str, str], ...] | UnsetType = UNSET


class ToolEnvironment(_Shape, frozen=True, kw_only=True):
    """Where a tool runs: in a container, or at the client."""

    type: str
    container_id: str | UnsetType = UNSET
    file_ids: tuple[str, ...] | UnsetType = UNSET
    memory_limit: str | UnsetType | None = UNSET
    network_policy: EnvironmentNetwork | UnsetType = UNSET
    skills: tuple[dict[str, Any], ...] | UnsetType = UNSET


class ShellOutcome(_Shape, frozen=True, kw_only=True):
    type: Literal["exit", "timeout"]
    exit_code: int | UnsetType = UNSET


class ShellOutput(_Shape, frozen=True, kw_only=True):
    stdout: str | UnsetType = UNSET
    stderr: str | UnsetType = UNSET
    outcome: ShellOutcome | UnsetType = UNSET
    created_by: str | UnsetType = UNSET


class McpToolFilter(_Shape, frozen=True, kw_only=True):
    tool_names: tuple[str, ...] | UnsetType = UNSET
    read_only: bool | UnsetType = UNSET


class McpApprovalRules(_Shape, frozen=True, kw_only=True):
    always: McpToolFilter | UnsetType = UNSET
    never: McpToolFilter | UnsetType = UNSET


class McpTool(_Shape, frozen=True, kw_only=True):
    name: str
    input_schema: dict[str, Any]
    description: str | UnsetType = UNSET
    annotations: dict[str, Any] | UnsetType = UNSET


class SearchSource(_Shape, frozen=True, kw_only=True):
    type: str
    url: str | UnsetType = UNSET


class SearchAction(_Shape, frozen=True, kw_only=True):
    type: Literal["search", "open_page", "find_in_page"]
    query: str | UnsetType = UNSET
    queries: tuple[str, ...] | UnsetType = UNSET
    sources: tuple[SearchSource, ...] | UnsetType = UNSET
    url: str | UnsetType | None = UNSET
    pattern: str | UnsetType = UNSET


class FoundPage(_Shape, frozen=True, kw_only=True):
    url: str | UnsetType = UNSET
    title: str | UnsetType = UNSET
    text: str | UnsetType = UNSET


class DomainFilters(_Shape, frozen=True, kw_only=True):
    allowed_domains: tuple[str, ...] | UnsetType | None = UNSET
    blocked_domains: tuple[str, ...] | UnsetType | None = UNSET


class UserLocation(_Shape, frozen=True, kw_only=True):
    type: Literal["approximate"] | UnsetType = UNSET
    city: str | UnsetType | None = UNSET
    country: str | UnsetType | None = UNSET
    region: str | UnsetType | None = UNSET
    timezone: str | UnsetType | None = UNSET


class RequiredItem(_Shape, frozen=True, kw_only=True):
    """An item that the next request has to contain."""

    type: str
    call_id: str | UnsetType = UNSET
    approval_request_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    execution: str | UnsetType = UNSET


class WebSearchUsage(_Shape, frozen=True, kw_only=True):
    num_requests: int


class ImageTokens(_Shape, frozen=True, kw_only=True):
    image_tokens: int
    text_tokens: int


class ImageUsage(_Shape, frozen=True, kw_only=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: ImageTokens | UnsetType = UNSET
    output_tokens_details: ImageTokens | UnsetType = UNSET


class ToolUsage(_Shape, frozen=True, kw_only=True):
    image_gen: ImageUsage | UnsetType = UNSET
    web_search: WebSearchUsage | UnsetType = UNSET


class ResponseMetrics(_Shape, frozen=True, kw_only=True):
    time_to_first_token_ms: float | UnsetType = UNSET
    generation_time_ms: float | UnsetType = UNSET
    total_time_ms: float | UnsetType = UNSET
    input_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET
    cached_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET
    output_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET
    tool_output_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET


class RawMessage(_Shape, frozen=True, kw_only=True):
    type: str
    message: str
    tokens: tuple[int, ...]
    tokenizer: str | UnsetType | None = UNSET
    items: tuple[dict[str, Any], ...] | UnsetType = UNSET


class CacheControl(_Shape, frozen=True, kw_only=True):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | UnsetType = UNSET


class CitationChoice(_Shape, frozen=True, kw_only=True):
    enabled: bool | UnsetType = UNSET


class McpToolConfiguration(_Shape, frozen=True, kw_only=True):
    enabled: bool | UnsetType | None = UNSET
    allowed_tools: tuple[str, ...] | UnsetType | None = UNSET


class PromptTokensDetails(_Shape, frozen=True, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(_Shape, frozen=True, kw_only=True):
    reasoning_tokens: int


class EmbeddingObject(_Shape, frozen=True, kw_only=True):
    """``embedding``: numbers, or their bytes in base64."""

    object: Literal["embedding"]
    index: int
    embedding: tuple[float, ...] | str


class EmbeddingUsage(_Shape, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int


_SEARCH_TOOLS = (
    *(tools.WebSearch, tools.WebSearchDated, tools.WebSearchPreview, tools.WebSearchPreviewDated),
    tools.WebFetch,
)

_CACHED_BY_ANTHROPIC = (MessageBlock, MessageTool, MessagesFields, CountTokensFields)

#: (class, field) → the shape of the objects in this field.
SHAPES: Mapping[tuple[type[Struct], str], type[Struct]] = {
    (it.AgentMessage, "agent"): AgentName,
    (it.ApplyPatchCall, "operation"): PatchOperation,
    (it.CodeInterpreterCall, "outputs"): CodeOutput,
    (it.ComputerCall, "pending_safety_checks"): SafetyCheck,
    (it.ComputerCall, "action"): ComputerAction,
    (it.ComputerCall, "actions"): ComputerAction,
    (it.ComputerCallOutput, "acknowledged_safety_checks"): SafetyCheck,
    (it.FileSearchCall, "results"): FoundPassage,
    (it.FileSearchCall, "passage_files"): FoundPassage,
    (it.LocalShellCall, "action"): LocalCommand,
    (it.McpListTools, "tools"): McpTool,
    (it.ShellCall, "action"): ShellAction,
    (it.ShellCall, "environment"): ToolEnvironment,
    (it.ShellCallOutput, "output"): ShellOutput,
    (it.WebSearchCall, "action"): SearchAction,
    (it.WebSearchCall, "results"): FoundPage,
    (ev.ShellCallOutputContentDelta, "delta"): ShellOutput,
    (ev.ShellCallOutputContentDone, "output"): ShellOutput,
    (ev.SteerPending, "required_input"): RequiredItem,
    (steering.PendingSteering, "required_input"): RequiredItem,
    (parts.InputAudio, "input_audio"): AudioData,
    (tools.CodeInterpreter, "container"): ToolEnvironment,
    (tools.FileSearch, "filters"): SearchFilter,
    (tools.FileSearch, "ranking_options"): ResultRanking,
    (tools.ImageGeneration, "input_image_mask"): ImageReference,
    (tools.Mcp, "allowed_tools"): McpToolFilter,
    (tools.Mcp, "require_approval"): McpApprovalRules,
    (tools.Shell, "environment"): ToolEnvironment,
    **{(cls, "filters"): DomainFilters for cls in _SEARCH_TOOLS},
    **{(cls, "user_location"): UserLocation for cls in _SEARCH_TOOLS},
    (CreateResponse, "previous_input_messages"): RawMessage,
    (response.Response, "tool_usage"): ToolUsage,
    (response.Response, "metrics"): ResponseMetrics,
    (response.Response, "input_messages"): RawMessage,
    (response.Response, "output_messages"): RawMessage,
    (ChatPart, "image_url"): UrlReference,
    (ChatPart, "video_url"): UrlReference,
    (ChatPart, "input_audio"): AudioData,
    (ChatPart, "file"): ChatFile,
    **{(cls, "cache_control"): CacheControl for cls in _CACHED_BY_ANTHROPIC},
    (MessageTool, "user_location"): UserLocation,
    (MessageTool, "citations"): CitationChoice,
    (MessageMcpServer, "tool_configuration"): McpToolConfiguration,
    (ImagesAnswer, "usage"): ImageUsage,
    (ImageEvent, "usage"): ImageUsage,
    (CompletionUsage, "prompt_tokens_details"): PromptTokensDetails,
    (CompletionUsage, "completion_tokens_details"): CompletionTokensDetails,
    (DecisionBody, "prompt_cache_options"): PromptCacheRequest,
    (EmbeddingList, "data"): EmbeddingObject,
    (EmbeddingList, "usage"): EmbeddingUsage,
}
