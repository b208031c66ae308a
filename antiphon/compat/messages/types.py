"""Answers and events of the Messages API. Their fields follow the types of the ``anthropic`` SDK
2.12."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.wire.json_types import JsonObject
from antiphon.wire.response import OmittedPart

from .bodies import MessageSkillReference

StopReason = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
    "compaction",
]
MissType = Literal[
    "model_changed",
    "system_changed",
    "tools_changed",
    "messages_changed",
    "previous_message_not_found",
    "unavailable",
]


def rfc3339(seconds: int) -> str:
    """Return a time as Anthropic's API shows it. ``seconds``: the time in Unix seconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


# --- blocks --------------------------------------------------------------------------------------


class WebSearchResultLocation(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="web_search_result_location"
):
    """A citation of a search result. ``cited_text`` is always empty, because Antiphon records only
    the URL and the title of the cited page."""

    url: str
    title: str
    cited_text: str = ""
    encrypted_index: str = ""


class _DocumentLocation(Struct, frozen=True, kw_only=True, tag_field="type"):
    cited_text: str
    document_index: int
    document_title: str | None
    file_id: str | None = None


class CharLocation(_DocumentLocation, frozen=True, kw_only=True, tag="char_location"):
    start_char_index: int
    end_char_index: int


class PageLocation(_DocumentLocation, frozen=True, kw_only=True, tag="page_location"):
    start_page_number: int
    end_page_number: int


class BlockLocation(_DocumentLocation, frozen=True, kw_only=True, tag="content_block_location"):
    start_block_index: int
    end_block_index: int


class SearchResultLocation(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="search_result_location"
):
    cited_text: str
    search_result_index: int
    source: str
    title: str | None
    start_block_index: int
    end_block_index: int


#: A citation. The ends of the ranges are not included.
Citation = (
    WebSearchResultLocation | CharLocation | PageLocation | BlockLocation | SearchResultLocation
)


class TextBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str
    citations: tuple[Citation, ...] | UnsetType = UNSET


class ThinkingBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """A thinking block. ``signature``: the reasoning in encrypted form. The client sends it back in
    the next request."""

    thinking: str
    signature: str


class ToolUseBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool of the client. ``toolset_name``: the toolset to which the tool belongs."""

    id: str
    name: str
    input: JsonObject
    toolset_name: str | UnsetType = UNSET


class ServerToolUseBlock(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="server_tool_use"
):
    id: str
    name: str
    input: JsonObject


class WebSearchResult(Struct, frozen=True, kw_only=True, tag_field="type", tag="web_search_result"):
    """A search result. ``encrypted_content``: the text of the result in base64. The client sends it
    back in the next request."""

    url: str
    title: str
    encrypted_content: str
    page_age: str | None = None


class WebSearchError(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="web_search_tool_result_error"
):
    error_code: str = "unavailable"


class WebSearchResultBlock(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="web_search_tool_result"
):
    tool_use_id: str
    content: tuple[WebSearchResult, ...] | WebSearchError


class DocumentText(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    data: str
    media_type: Literal["text/plain"] = "text/plain"


class FetchedDocument(Struct, frozen=True, kw_only=True, tag_field="type", tag="document"):
    source: DocumentText
    title: str | None


class WebFetchResult(Struct, frozen=True, kw_only=True, tag_field="type", tag="web_fetch_result"):
    url: str
    content: FetchedDocument
    retrieved_at: str | None = None


class WebFetchError(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="web_fetch_tool_result_error"
):
    error_code: str = "url_not_accessible"


class WebFetchBlock(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="web_fetch_tool_result"
):
    tool_use_id: str
    content: WebFetchResult | WebFetchError


class CodeExecutionResult(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="code_execution_result"
):
    """``stdout``: everything that the code has printed, and its error, if any. ``content`` is
    always empty: text of the answer refers to files."""

    stdout: str
    stderr: str = ""
    return_code: int
    content: tuple[()] = ()


class CodeExecutionBlock(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="code_execution_tool_result"
):
    tool_use_id: str
    content: CodeExecutionResult


class McpUseBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_tool_use"):
    id: str
    name: str
    server_name: str
    input: JsonObject


class McpResultBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_tool_result"):
    tool_use_id: str
    is_error: bool
    content: tuple[TextBlock, ...]


class ToolReference(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_reference"):
    tool_name: str


class ToolReferences(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_search_tool_search_result"
):
    tool_references: tuple[ToolReference, ...]


class ToolSearchBlock(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_search_tool_result"
):
    tool_use_id: str
    content: ToolReferences


class CompactionBlock(Struct, frozen=True, kw_only=True, tag_field="type", tag="compaction"):
    """A compaction. ``content``: the summary; None if the model could not write one.
    ``encrypted_content``: what the server needs of the conversation. The client sends it back."""

    content: str | None
    encrypted_content: str | None


AnswerBlock = (
    TextBlock
    | ThinkingBlock
    | ToolUseBlock
    | ServerToolUseBlock
    | WebSearchResultBlock
    | WebFetchBlock
    | CodeExecutionBlock
    | McpUseBlock
    | McpResultBlock
    | ToolSearchBlock
    | CompactionBlock
)


# --- messages ------------------------------------------------------------------------------------


class ThinkingTokens(Struct, frozen=True, kw_only=True):
    thinking_tokens: int = 0


class ServerToolUsage(Struct, frozen=True, kw_only=True):
    web_search_requests: int = 0
    web_fetch_requests: int = 0


class IterationUsage(Struct, frozen=True, kw_only=True):
    """Token usage of one model call: of one that writes the answer (``message``), or a compaction
    before it."""

    type: Literal["message", "compaction"]
    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class MessageUsage(Struct, frozen=True, kw_only=True):
    """Token usage. ``input_tokens`` includes neither the tokens that were read from the cache nor
    the tokens that were written to it."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens_details: ThinkingTokens | UnsetType = UNSET
    server_tool_use: ServerToolUsage | UnsetType = UNSET
    iterations: tuple[IterationUsage, ...] | UnsetType = UNSET


class ClearedThinking(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="clear_thinking_20251015"
):
    """Thinking of earlier answers that the model did not see. The tokens are estimated."""

    cleared_thinking_turns: int
    cleared_input_tokens: int


class ClearedToolUses(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="clear_tool_uses_20250919"
):
    """Results of tools that the model did not see. The tokens are estimated."""

    cleared_tool_uses: int
    cleared_input_tokens: int


class AppliedEdits(Struct, frozen=True, kw_only=True):
    """The edits of a request's ``context_management`` that had an effect."""

    applied_edits: tuple[ClearedThinking | ClearedToolUses, ...]


class MessageContainer(Struct, frozen=True, kw_only=True):
    """The container of the code execution. ``expires_at``: time in the format of RFC 3339.
    ``skills``: those that the request has put into it."""

    id: str
    expires_at: str
    skills: tuple[MessageSkillReference, ...] | UnsetType = UNSET


class RefusalDetails(Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """The reason for the stop reason ``refusal``. ``explanation``: what the model wrote; null if a
    moderator stopped the answer. ``category`` is always null, because Antiphon has none."""

    category: None = None
    explanation: str | None = None


class MessageCacheMiss(Struct, frozen=True, kw_only=True):
    """Why the prompt differs from the one that it was compared with.
    ``cache_missed_input_tokens``: how many tokens of the earlier prompt follow the first
    difference. ``unavailable``: another field of the request has changed, or the server cannot
    tell."""

    type: MissType
    cache_missed_input_tokens: int | UnsetType = UNSET


class MessageDiagnostics(Struct, frozen=True):
    cache_miss_reason: MessageCacheMiss


class MessageAnswer(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """An answer of the Messages API. ``stop_reason`` is null only at the start of a stream."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[AnswerBlock, ...] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: RefusalDetails | UnsetType = UNSET
    usage: MessageUsage = MessageUsage()
    diagnostics: MessageDiagnostics | UnsetType = UNSET
    container: MessageContainer | UnsetType = UNSET
    context_management: AppliedEdits | UnsetType = UNSET
    omitted_parts: tuple[OmittedPart, ...] | UnsetType = UNSET


class OriginalTokens(Struct, frozen=True, kw_only=True):
    """``original_input_tokens``: the number of tokens without the edits of the context, of which
    those that the edits clear are estimated."""

    original_input_tokens: int


class InputTokens(Struct, frozen=True, kw_only=True):
    """The answer of ``/messages/count_tokens``. ``context_management``: set if the request asks for
    edits of the context."""

    input_tokens: int
    context_management: OriginalTokens | UnsetType = UNSET

    @classmethod
    def of(cls, count: int, edits: AppliedEdits | UnsetType) -> InputTokens:
        """Return the answer for a prompt with ``count`` tokens after these edits."""
        if edits is UNSET:
            return cls(input_tokens=count)
        original = count + sum(each.cleared_input_tokens for each in edits.applied_edits)
        return cls(
            input_tokens=count,
            context_management=OriginalTokens(original_input_tokens=original),
        )


class MessageErrorDetails(Struct, frozen=True, kw_only=True):
    """``details``: the error code, as ``error_code``."""

    type: str
    message: str
    details: JsonObject | UnsetType = UNSET


class MessageError(Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """An error, as the body of an HTTP error or as an event."""

    error: MessageErrorDetails
    request_id: str | None = None


# --- events --------------------------------------------------------------------------------------


class TextDelta(Struct, frozen=True, tag_field="type", tag="text_delta"):
    text: str


class InputJsonDelta(Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class ThinkingDelta(Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """A piece of thinking. ``estimated_tokens``: number of thinking tokens since the last event. It
    is set only if the text of thinking is not returned."""

    thinking: str
    estimated_tokens: int | UnsetType = UNSET


class SignatureDelta(Struct, frozen=True, tag_field="type", tag="signature_delta"):
    signature: str


class CitationsDelta(Struct, frozen=True, tag_field="type", tag="citations_delta"):
    citation: Citation


class CompactionDelta(Struct, frozen=True, tag_field="type", tag="compaction_delta"):
    content: str | None
    encrypted_content: str | None


BlockDelta = (
    TextDelta | InputJsonDelta | ThinkingDelta | SignatureDelta | CitationsDelta | CompactionDelta
)


class MessageStart(Struct, frozen=True, tag_field="type", tag="message_start"):
    message: MessageAnswer


class BlockStart(Struct, frozen=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class BlockDeltaEvent(Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: BlockDelta


class BlockStop(Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    index: int


class MessageEnd(Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None = None
    stop_details: RefusalDetails | UnsetType = UNSET
    container: MessageContainer | UnsetType = UNSET


class MessageDelta(Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The event after the last content block of a message. ``usage``: token usage of the whole
    message."""

    delta: MessageEnd
    usage: MessageUsage
    context_management: AppliedEdits | UnsetType = UNSET
    omitted_parts: tuple[OmittedPart, ...] | UnsetType = UNSET


class MessageStop(Struct, frozen=True, tag_field="type", tag="message_stop"):
    pass


class Ping(Struct, frozen=True, tag_field="type", tag="ping"):
    """Keeps the connection open."""


MessageEvent = (
    MessageStart
    | BlockStart
    | BlockDeltaEvent
    | BlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | MessageError
)


# --- models --------------------------------------------------------------------------------------


class Support(Struct, frozen=True):
    supported: bool = True


_YES = Support()


class EffortSupport(Support, frozen=True, kw_only=True):
    low: Support
    medium: Support
    high: Support
    xhigh: Support
    max: Support


class ThinkingTypeSupport(Struct, frozen=True, kw_only=True):
    adaptive: Support
    enabled: Support
    between_tools: Support = _YES
    disabled: Support = _YES


class ThinkingSupport(Support, frozen=True, kw_only=True):
    types: ThinkingTypeSupport


class ServerToolSupport(Support, frozen=True, kw_only=True):
    code_execution: Support
    web_search: Support


class EditSupport(Support, frozen=True, kw_only=True):
    clear_thinking_20251015: Support = _YES
    clear_tool_uses_20250919: Support = _YES
    compact_20260112: Support = _YES


class CompactionSupport(Support, frozen=True, kw_only=True):
    summarize: Support = _YES


class ModelCapabilities(Struct, frozen=True, kw_only=True):
    """What a model can do here. What all models of the server can do has a default.
    ``code_execution``: whether code may call the request's other tools."""

    image_input: Support
    effort: EffortSupport
    thinking: ThinkingSupport
    server_tools: ServerToolSupport
    batch: Support = _YES
    citations: Support = _YES
    code_execution: Support = Support(False)
    pdf_input: Support = _YES
    structured_outputs: Support = _YES
    context_management: EditSupport = EditSupport()
    compaction: CompactionSupport = CompactionSupport()

    @classmethod
    def of(
        cls, *, images: bool, thinks: bool, executes_code: bool, searches: bool
    ) -> ModelCapabilities:
        """``thinks``: whether the model may think. The others: what the model reads, and which
        tools the server runs."""
        may_think = Support(thinks)
        levels = dict.fromkeys(("low", "medium", "high", "xhigh", "max"), may_think)
        types = ThinkingTypeSupport(adaptive=may_think, enabled=may_think)
        return cls(
            image_input=Support(images),
            effort=EffortSupport(supported=thinks, **levels),
            thinking=ThinkingSupport(supported=thinks, types=types),
            server_tools=ServerToolSupport(
                supported=executes_code or searches,
                code_execution=Support(executes_code),
                web_search=Support(searches),
            ),
        )


class MessagesModel(Struct, frozen=True, kw_only=True, tag_field="type", tag="model"):
    """A model, or an alias of a model. ``created_at``: time in the format of RFC 3339.
    ``max_tokens``: as many as the context has. ``capabilities``: null until the model is loaded."""

    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    capabilities: ModelCapabilities | None = None


class MessagesModelPage(Struct, frozen=True, kw_only=True):
    """A page of the list of models."""

    data: tuple[MessagesModel, ...]
    has_more: bool = False
    first_id: str | None = None
    last_id: str | None = None
