"""Types of the request bodies of the Messages API.

The OpenAPI document contains all of them. The parsers check tools, MCP servers and objects with
options against these types. They translate messages and the other fields from the JSON, without the
types; a test checks that the types and the parsers agree.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.wire.json_types import JsonObject

#: Types of the blocks with results of server tools.
ServerResult = Literal[
    "advisor_tool_result",
    "bash_code_execution_tool_result",
    "code_execution_tool_result",
    "mcp_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "web_fetch_tool_result",
    "web_search_tool_result",
]


class CacheControl(Struct, frozen=True, kw_only=True):
    """A hint without an effect on this server. Every value is accepted."""

    type: str | UnsetType = UNSET
    ttl: str | UnsetType | None = UNSET


class MessageBlock(Struct, frozen=True, kw_only=True):
    """A content block. Its fields depend on ``type``. ``cache_control`` has no effect: prefix
    caching is automatic."""

    type: Literal[
        "text",
        "image",
        "document",
        "search_result",
        "tool_use",
        "tool_result",
        "thinking",
        "redacted_thinking",
        "server_tool_use",
        "mcp_tool_use",
        "mcp_tool_listing",
        "compaction",
        "container_upload",
        "fallback",
        ServerResult,
        "tool_addition",
        "tool_removal",
    ]
    text: str | UnsetType = UNSET
    source: str | JsonObject | UnsetType = UNSET
    title: str | None = None
    context: str | None = None
    citations: JsonObject | tuple[JsonObject, ...] | None = None
    server_name: str | UnsetType = UNSET
    tool_changes: tuple[JsonObject, ...] | None = None
    id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    input: JsonObject | UnsetType = UNSET
    toolset_name: str | None = None
    tool_use_id: str | UnsetType = UNSET
    content: str | JsonObject | tuple[JsonObject, ...] | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    data: str | UnsetType = UNSET
    tool: JsonObject | UnsetType = UNSET
    encrypted_content: str | None = None
    file_id: str | UnsetType = UNSET
    cache_control: CacheControl | None = None


class MessageInput(Struct, frozen=True, kw_only=True):
    """A message. ``clear_at`` and ``output_config``, which sets the reasoning effort from here on,
    are only for the role ``system``."""

    role: Literal["user", "assistant", "system"]
    content: str | tuple[MessageBlock, ...]
    clear_at: Literal["never", "next_user_message"] | None = None
    output_config: JsonObject | None = None


ToolType = Literal[
    "custom",
    "bash_20241022",
    "bash_20250124",
    "text_editor_20241022",
    "text_editor_20250124",
    "text_editor_20250429",
    "text_editor_20250728",
    "memory_20250818",
    "computer_20241022",
    "computer_20250124",
    "computer_20251124",
    "computer_toolset_20260801",
    "browser_toolset_20260801",
    "web_search_20250305",
    "web_search_20260209",
    "web_search_20260318",
    "web_fetch_20250910",
    "web_fetch_20260209",
    "web_fetch_20260309",
    "web_fetch_20260318",
    "code_execution_20250522",
    "code_execution_20250825",
    "code_execution_20260120",
    "code_execution_20260521",
    "tool_search_tool_bm25",
    "tool_search_tool_bm25_20251119",
    "tool_search_tool_regex",
    "tool_search_tool_regex_20251119",
    "mcp_toolset",
]


class UserLocation(Struct, frozen=True, kw_only=True):
    type: Literal["approximate"] | UnsetType = UNSET
    city: str | UnsetType | None = UNSET
    country: str | UnsetType | None = UNSET
    region: str | UnsetType | None = UNSET
    timezone: str | UnsetType | None = UNSET


class CitationChoice(Struct, frozen=True, kw_only=True):
    enabled: bool | None = None


class ToolConfig(Struct, frozen=True, kw_only=True):
    """Options of the tools in a toolset. A tool is enabled unless ``enabled`` is false."""

    enabled: bool | None = None
    defer_loading: bool | None = None


class MessageTool(Struct, frozen=True, kw_only=True):
    """A tool of the Messages API. ``input_schema``: a JSON schema, only for the type ``custom``.
    Tools of the type ``mcp_toolset`` have a ``mcp_server_name``, other toolsets no name, and all
    others a ``name``.
    ``defer_loading``: the model does not see the tool until a tool search finds it, a message
    contains a ``tool_addition`` block for it, or a tool result refers to it.
    """

    name: str | UnsetType = UNSET
    type: ToolType | None = None
    description: str | UnsetType = UNSET
    input_schema: JsonObject | UnsetType = UNSET
    input_examples: tuple[JsonObject, ...] | UnsetType = UNSET
    strict: bool | UnsetType = UNSET
    defer_loading: bool | UnsetType = UNSET
    eager_input_streaming: bool | None = None
    allowed_callers: tuple[Literal["direct"], ...] | UnsetType = UNSET
    allowed_domains: tuple[str, ...] | None = None
    blocked_domains: tuple[str, ...] | None = None
    max_uses: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    user_location: UserLocation | None = None
    max_content_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    citations: CitationChoice | None = None
    mcp_server_name: str | UnsetType = UNSET
    default_config: ToolConfig | None = None
    configs: dict[str, ToolConfig] | None = None
    max_characters: int | None = None
    display_width_px: int | UnsetType = UNSET
    display_height_px: int | UnsetType = UNSET
    enable_zoom: bool | UnsetType = UNSET
    cache_control: CacheControl | None = None


class McpToolConfiguration(Struct, frozen=True, kw_only=True):
    enabled: bool | UnsetType | None = UNSET
    allowed_tools: tuple[str, ...] | UnsetType | None = UNSET


class MessageMcpServer(Struct, frozen=True, kw_only=True):
    """An MCP server whose tools the model may call through a tool of the type ``mcp_toolset``."""

    type: Literal["url"]
    name: str
    url: str
    authorization_token: str | None = None
    tool_configuration: McpToolConfiguration | None = None


class MessageToolChoice(Struct, frozen=True, kw_only=True):
    """Which tools the model may or must call. ``name`` is only for the type ``tool``."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | UnsetType = UNSET
    disable_parallel_tool_use: bool | UnsetType = UNSET


class MessageThinking(Struct, frozen=True, kw_only=True):
    """Options of thinking. ``budget_tokens`` is only for the type ``enabled``. It is a target:
    upstreams without budgets get an effort, or nothing. ``display``: whether thinking is returned
    with its text or only with its signature."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType = UNSET
    display: Literal["summarized", "omitted", "updates"] | None = None


class MessageOutputFormat(Struct, frozen=True, kw_only=True):
    """A JSON schema that the answer must match."""

    type: Literal["json_schema"]
    schema: JsonObject


class MessageOutputConfig(Struct, frozen=True, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: MessageOutputFormat | None = None


class MessageMetadata(Struct, frozen=True, kw_only=True):
    user_id: str | None = None


class MessageDiagnosticsFields(Struct, frozen=True, kw_only=True):
    """Asks why the prompt cache did not help. ``previous_message_id``: the message whose prompt is
    compared, which must be in a thread; null if there is none yet."""

    previous_message_id: str | None = None


class MessageThread(Struct, frozen=True, kw_only=True):
    """Whether the server keeps the conversation. ``create``: keep it under the id of the answer.
    ``continue``: go on after the message ``previous_message_id``; ``messages`` then contains only
    the new messages, and ``system`` and ``tools`` must be left out."""

    type: Literal["create", "continue"]
    previous_message_id: str | UnsetType = UNSET


class MessageContextManagement(Struct, frozen=True, kw_only=True):
    """Changes to the context before the model sees it. ``edits`` may contain edits of the types
    ``clear_thinking_20251015``, ``clear_tool_uses_20250919`` and ``compact_20260112``."""

    edits: tuple[JsonObject, ...] = ()


class MessageCompaction(Struct, frozen=True, kw_only=True):
    """Asks for a compaction of the conversation instead of an answer."""

    type: Literal["summarize"]
    instructions: str | None = None


class MessageSkillReference(Struct, frozen=True, kw_only=True):
    """A skill for the container of the code execution. ``version``: its number; by default the
    newest one."""

    type: Literal["custom"]
    skill_id: str
    version: str = "latest"


class MessageContainerFields(Struct, frozen=True, kw_only=True):
    """The container of the code execution: the ``id`` of an existing one, and its skills."""

    id: str | None = None
    skills: Annotated[tuple[MessageSkillReference, ...], Meta(max_length=20)] | None = None


class CountTokensFields(Struct, frozen=True, kw_only=True):
    """A request of the Messages API to count the tokens of a prompt."""

    model: str
    messages: Annotated[tuple[MessageInput, ...], Meta(min_length=1)]
    system: str | tuple[MessageBlock, ...] | None = None
    tools: tuple[MessageTool, ...] | None = None
    tool_choice: MessageToolChoice | None = None
    mcp_servers: tuple[MessageMcpServer, ...] | None = None
    container: str | MessageContainerFields | None = None
    thinking: MessageThinking | None = None
    output_config: MessageOutputConfig | None = None
    output_format: MessageOutputFormat | None = None
    context_management: MessageContextManagement | None = None
    compaction: MessageCompaction | None = None
    cache_control: CacheControl | None = None
    speed: Literal["standard", "fast"] | None = None


class MessagesFields(CountTokensFields, frozen=True, kw_only=True):
    """A request of the Messages API. Only answers in a ``thread`` are stored. If ``max_tokens`` is
    0, the model caches the prompt and generates nothing."""

    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    stream: bool | None = None
    stop_sequences: (
        Annotated[
            tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=16)
        ]
        | None
    ) = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    metadata: MessageMetadata | None = None
    thread: MessageThread | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    diagnostics: MessageDiagnosticsFields | None = None
    inference_geo: str | None = None
    fallbacks: Literal["default"] | tuple[JsonObject, ...] | None = None
