"""The shapes of objects that Antiphon passes on as they are, such as the action of a call. Their
types in ``wire`` are free objects, so that no field of them is lost. Only the OpenAPI document
needs the shapes.

A free object that is not in ``SHAPES`` may have any fields, such as a JSON schema or arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.compat.decisions import DecisionBody
from antiphon.compat.images import ImageEvent, ImagesAnswer, ImageSource
from antiphon.compat.messages.bodies import UserLocation
from antiphon.compat.request_bodies import AudioData
from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire import parts, response, steering, tools
from antiphon.wire.parsing.vector_stores import RankingOptionsBody, SearchFilter
from antiphon.wire.request import CreateResponse
from antiphon.wire.request_options import PromptCacheRequest
from antiphon.wire.resources.containers import NetworkPolicy


class AgentName(Struct, frozen=True, kw_only=True):
    agent_name: str


class PatchOperation(Struct, frozen=True, kw_only=True):
    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | UnsetType = UNSET


class CodeOutput(Struct, frozen=True, kw_only=True):
    type: Literal["logs", "image"]
    logs: str | UnsetType = UNSET
    url: str | UnsetType = UNSET


class SafetyCheck(Struct, frozen=True, kw_only=True):
    id: str
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET


class Coordinates(Struct, frozen=True, kw_only=True):
    x: int
    y: int


class ComputerAction(Struct, frozen=True, kw_only=True):
    type: str
    x: int | UnsetType = UNSET
    y: int | UnsetType = UNSET
    button: str | UnsetType = UNSET
    keys: tuple[str, ...] | UnsetType = UNSET
    path: tuple[Coordinates, ...] | UnsetType = UNSET
    scroll_x: int | UnsetType = UNSET
    scroll_y: int | UnsetType = UNSET
    text: str | UnsetType = UNSET


class FoundPassage(Struct, frozen=True, kw_only=True):
    file_id: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET
    score: float | UnsetType = UNSET
    text: str | UnsetType = UNSET
    attributes: dict[str, Any] | UnsetType = UNSET


class LocalCommand(Struct, frozen=True, kw_only=True):
    type: Literal["exec"]
    command: tuple[str, ...]
    env: dict[str, str] = {}
    timeout_ms: int | UnsetType = UNSET
    user: str | UnsetType = UNSET
    working_directory: str | UnsetType = UNSET


class ShellAction(Struct, frozen=True, kw_only=True):
    commands: tuple[str, ...]
    timeout_ms: int | UnsetType | None = UNSET
    max_output_length: int | UnsetType | None = UNSET


class ToolEnvironment(Struct, frozen=True, kw_only=True):
    """Where a tool runs: in a container, or at the client."""

    type: str
    container_id: str | UnsetType = UNSET
    file_ids: tuple[str, ...] | UnsetType = UNSET
    memory_limit: str | UnsetType | None = UNSET
    network_policy: NetworkPolicy | UnsetType = UNSET
    skills: tuple[dict[str, Any], ...] | UnsetType = UNSET


class ShellOutcome(Struct, frozen=True, kw_only=True):
    type: Literal["exit", "timeout"]
    exit_code: int | UnsetType = UNSET


class ShellOutput(Struct, frozen=True, kw_only=True):
    stdout: str | UnsetType = UNSET
    stderr: str | UnsetType = UNSET
    outcome: ShellOutcome | UnsetType = UNSET
    created_by: str | UnsetType = UNSET


class McpToolFilter(Struct, frozen=True, kw_only=True):
    tool_names: tuple[str, ...] | UnsetType = UNSET
    excluded_tool_names: tuple[str, ...] | UnsetType = UNSET
    read_only: bool | UnsetType = UNSET


class McpApprovalRules(Struct, frozen=True, kw_only=True):
    always: McpToolFilter | UnsetType = UNSET
    never: McpToolFilter | UnsetType = UNSET


class McpTool(Struct, frozen=True, kw_only=True):
    name: str
    input_schema: dict[str, Any]
    description: str | UnsetType = UNSET
    annotations: dict[str, Any] | UnsetType = UNSET


class SearchSource(Struct, frozen=True, kw_only=True):
    type: str
    url: str | UnsetType = UNSET


class SearchAction(Struct, frozen=True, kw_only=True):
    type: Literal["search", "open_page", "find_in_page"]
    query: str | UnsetType = UNSET
    queries: tuple[str, ...] | UnsetType = UNSET
    sources: tuple[SearchSource, ...] | UnsetType = UNSET
    url: str | UnsetType | None = UNSET
    pattern: str | UnsetType = UNSET


class FoundPage(Struct, frozen=True, kw_only=True):
    url: str | UnsetType = UNSET
    title: str | UnsetType = UNSET
    text: str | UnsetType = UNSET


class DomainFilters(Struct, frozen=True, kw_only=True):
    allowed_domains: tuple[str, ...] | UnsetType | None = UNSET
    blocked_domains: tuple[str, ...] | UnsetType | None = UNSET


class RequiredItem(Struct, frozen=True, kw_only=True):
    """An item that the next request has to contain."""

    type: str
    call_id: str | UnsetType = UNSET
    approval_request_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    execution: str | UnsetType = UNSET


class WebSearchUsage(Struct, frozen=True, kw_only=True):
    num_requests: int


class ImageTokens(Struct, frozen=True, kw_only=True):
    image_tokens: int
    text_tokens: int


class ImageUsage(Struct, frozen=True, kw_only=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: ImageTokens | UnsetType = UNSET
    output_tokens_details: ImageTokens | UnsetType = UNSET


class ToolUsage(Struct, frozen=True, kw_only=True):
    image_gen: ImageUsage | UnsetType = UNSET
    web_search: WebSearchUsage | UnsetType = UNSET


class ResponseMetrics(Struct, frozen=True, kw_only=True):
    time_to_first_token_ms: float | UnsetType = UNSET
    generation_time_ms: float | UnsetType = UNSET
    total_time_ms: float | UnsetType = UNSET
    input_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET
    cached_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET
    output_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET
    tool_output_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET


class RawMessage(Struct, frozen=True, kw_only=True):
    type: str
    message: str
    tokens: tuple[int, ...]
    tokenizer: str | UnsetType | None = UNSET
    items: tuple[dict[str, Any], ...] | UnsetType = UNSET


_SEARCH_TOOLS = (
    *(tools.WebSearch, tools.WebSearchDated, tools.WebSearchPreview, tools.WebSearchPreviewDated),
    tools.WebFetch,
)

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
    (tools.FileSearch, "ranking_options"): RankingOptionsBody,
    (tools.ImageGeneration, "input_image_mask"): ImageSource,
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
    (ImagesAnswer, "usage"): ImageUsage,
    (ImageEvent, "usage"): ImageUsage,
    (DecisionBody, "prompt_cache_options"): PromptCacheRequest,
}
