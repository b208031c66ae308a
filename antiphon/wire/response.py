"""The response object. The first and the last event of a run contain it, and the store keeps it.

``None`` is null on the wire. ``UNSET`` means that the field is absent. Open Responses requires some
fields even if they are null, and forbids null in the other fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from antiphon.wire.json_types import JsonObject

from .items import InputFile, InputImage, InputText, Item
from .moderation import Moderation
from .request_options import (
    AccessPrograms,
    ImageOptions,
    PromptCacheDiagnostics,
    PromptCacheOptions,
)
from .steering import PendingSteering
from .text_formats import (
    Effort,
    JsonObjectFormat,
    JsonSchemaFormat,
    PlainFormat,
    TextFormatConfig,
)
from .tools import SharedTools, Tool, ToolChoiceParam

__all__ = [
    "RAW_MESSAGE_TYPE",
    "CompactedResponse",
    "ContextManagement",
    "ConversationRef",
    "Effort",
    "IgnoredTool",
    "IncompleteDetails",
    "InputTokensDetails",
    "InputTransformation",
    "JsonObjectFormat",
    "JsonSchemaFormat",
    "OmittedPart",
    "OutputTokensDetails",
    "PlainFormat",
    "PromptRef",
    "PromptValue",
    "ReasoningConfig",
    "Response",
    "ResponseError",
    "ResponseStatus",
    "TextConfig",
    "TextFormatConfig",
    "Usage",
    "encodable",
    "sum_usage",
    "without_shared",
]

#: The type of ``input_messages`` and ``output_messages``, which are vLLM's.
RAW_MESSAGE_TYPE = "raw_message_tokens"
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(Struct, frozen=True, kw_only=True):
    """Details of the input tokens. vLLM defined the two fields that end in ``_per_turn``. These
    fields are set only if the request asks for them."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0
    input_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET
    cached_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET


class OutputTokensDetails(Struct, frozen=True, kw_only=True):
    """Details of the output tokens. vLLM defined ``tool_output_tokens`` and the two fields that end
    in ``_per_turn``. These fields are set only if the request asks for them."""

    reasoning_tokens: int = 0
    tool_output_tokens: int | UnsetType = UNSET
    output_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET
    tool_output_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts of a response: all tokens the model read, and all tokens it sampled."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int = 0


def sum_usage(usages: Iterable[Usage]) -> Usage:
    """Return the sum of the usage of several model calls or responses. If they have the same
    prompt, its tokens count once for each of them."""
    used = tuple(usages)
    inputs = [one.input_tokens_details for one in used]
    return Usage(
        input_tokens=sum(one.input_tokens for one in used),
        input_tokens_details=InputTokensDetails(
            cached_tokens=sum(one.cached_tokens for one in inputs),
            cache_write_tokens=sum(one.cache_write_tokens for one in inputs),
        ),
        output_tokens=sum(one.output_tokens for one in used),
        output_tokens_details=OutputTokensDetails(
            reasoning_tokens=sum(one.output_tokens_details.reasoning_tokens for one in used)
        ),
        total_tokens=sum(one.total_tokens for one in used),
    )


class ResponseError(Struct, frozen=True, kw_only=True):
    """Why a run failed. Clients that use the AI SDK need the fields ``type`` and ``param``.

    ``code``: one of the codes that OpenAI's client knows. ``original_code`` is an extension: the
    error code, if it is another one.
    """

    code: str
    message: str
    type: str = "server_error"
    param: str | None = None
    original_code: str | UnsetType = UNSET

    @property
    def exact_code(self) -> str:
        """The error code, also if OpenAI's client does not know it."""
        return self.code if self.original_code is UNSET else self.original_code


class IncompleteDetails(Struct, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens", "content_filter", "max_messages", "steered"]


class TextConfig(Struct, frozen=True, kw_only=True):
    format: TextFormatConfig = PlainFormat()
    verbosity: Literal["low", "medium", "high"] | UnsetType = UNSET


class ReasoningConfig(Struct, frozen=True, kw_only=True):
    """Reasoning options. The response always contains ``effort`` and ``summary``, as Open Responses
    requires."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | UnsetType = UNSET
    context: Literal["auto", "current_turn", "all_turns"] | UnsetType = UNSET
    mode: str | UnsetType = UNSET


class ConversationRef(Struct, frozen=True, kw_only=True):
    id: Annotated[str, Meta(max_length=256)]


#: The value of a variable in a stored prompt: a text, or a part of a message.
PromptValue = str | InputText | InputImage | InputFile


class PromptRef(Struct, frozen=True, kw_only=True):
    """A reference to a stored prompt. The request is built from this prompt. Without ``version``,
    the newest version of the prompt is used."""

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    version: Annotated[str, Meta(min_length=1, max_length=256)] | UnsetType = UNSET
    variables: dict[str, PromptValue] | UnsetType = UNSET


class ContextManagement(Struct, frozen=True, kw_only=True):
    """The condition for compacting the context. If the rendered prompt has more than
    ``compact_threshold`` tokens, the server compacts the context. If no threshold is set, the
    server chooses one. The other fields are extensions. ``instructions``: what the summary has to
    contain besides. ``show_summary``: whether the item contains the summary as readable text, too.
    ``pause``: whether the response ends after a compaction, without an answer."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=1000, le=2**31 - 1)] | UnsetType = UNSET
    instructions: Annotated[str, Meta(max_length=100_000)] | UnsetType = UNSET
    show_summary: bool | UnsetType = UNSET
    pause: bool | UnsetType = UNSET


class InputTransformation(Struct, frozen=True, kw_only=True):
    """A report that an input item was removed, so the model did not see it.

    Antiphon reports reasoning and compaction items that it cannot decrypt, because another server
    encrypted them. The reason is then ``organization_mismatch``, as in OpenAI's API. OpenAI reports
    only reasoning items, so this is the only ``type``. ``item_type`` is an extension: the type of
    the removed item, if it is another one.
    """

    id: str
    action: Literal["removed"] = "removed"
    type: Literal["reasoning"] = "reasoning"
    item_type: str | UnsetType = UNSET
    reason: Literal[
        "organization_mismatch",
        "end_user_mismatch",
        "model_mismatch",
        "prefix_mismatch",
        "turn_boundary",
    ] = "organization_mismatch"


class IgnoredTool(Struct, frozen=True, kw_only=True):
    """A tool of the request that the server does not run. The model does not see this tool.
    ``reason``: why the server does not run the tool, and what would enable it."""

    type: str
    reason: str


class OmittedPart(Struct, frozen=True, kw_only=True):
    """A part of the request that the model cannot read. A note replaced it in the prompt.
    ``type``: the type of the part. ``param``: its path in the request."""

    type: str
    param: str


class Response(Struct, frozen=True, kw_only=True):
    """A response: the accumulated result of a run's events, and the fields of the request with
    defaults filled in."""

    id: str
    created_at: int
    model: str
    object: Literal["response"] = "response"
    status: ResponseStatus = "in_progress"
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | tuple[Item, ...] | None = None
    output: tuple[Item, ...] = ()
    previous_response_id: str | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoiceParam = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_logprobs: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    truncation: Literal["auto", "disabled"] = "disabled"
    text: TextConfig = TextConfig()
    reasoning: ReasoningConfig | None = None
    store: bool = True
    background: bool = False
    service_tier: str = "default"
    metadata: dict[str, str] = {}
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    usage: Usage | None = None
    conversation: ConversationRef | UnsetType = UNSET
    user: str | UnsetType = UNSET
    prompt: PromptRef | UnsetType = UNSET
    prompt_cache_options: PromptCacheOptions = PromptCacheOptions()
    prompt_cache_diagnostics: PromptCacheDiagnostics | UnsetType = UNSET
    prompt_cache_retention: str | UnsetType = UNSET
    context_management: tuple[ContextManagement, ...] | UnsetType = UNSET
    image: ImageOptions | UnsetType = UNSET
    access_programs: AccessPrograms | UnsetType = UNSET
    input_transformations: tuple[InputTransformation, ...] | UnsetType = UNSET
    moderation: Moderation | UnsetType = UNSET
    tool_usage: JsonObject | UnsetType = UNSET
    #: Extension: tools of the request that the server does not run.
    ignored_tools: tuple[IgnoredTool, ...] | UnsetType = UNSET
    #: Extension: fields of the request that the server does not know.
    ignored_fields: tuple[str, ...] | UnsetType = UNSET
    #: Extension: parts of the request that the model cannot read. It saw notes in their place.
    omitted_parts: tuple[OmittedPart, ...] | UnsetType = UNSET
    #: Extension: the stop string of the request that ended the output.
    matched_stop: str | UnsetType = UNSET
    #: Extension: input of clients that steered the response, which waits for their tool results.
    pending_steering: PendingSteering | UnsetType = UNSET
    #: Extensions: the messages the model read and wrote, and timings.
    input_messages: tuple[JsonObject, ...] | UnsetType = UNSET
    output_messages: tuple[JsonObject, ...] | UnsetType = UNSET
    metrics: JsonObject | UnsetType = UNSET


def encodable(response: Response, **fields: Any) -> Response:
    """Return the response in a form that only an encoder of JSON may use. If many responses have
    the same tools and instructions, these are encoded already. ``fields``: fields with other
    values."""
    tools: Any = response.tools
    if not isinstance(tools, SharedTools):
        return replace(response, **fields) if fields else response
    text: Any = response.instructions
    if tools.instructions is not None and text is tools.instructions.text:
        text = tools.instructions.json
    return replace(response, tools=tools.json, instructions=text, **fields)


def without_shared(response: Response) -> Response:
    """Return the response without the tools and instructions that many responses share."""
    tools = response.tools
    if not isinstance(tools, SharedTools):
        return response
    text = response.instructions
    if tools.instructions is not None and text is tools.instructions.text:
        text = None
    return replace(response, tools=(), instructions=text)


class CompactedResponse(Struct, frozen=True, kw_only=True):
    """The answer to ``POST /responses/compact``. The client sends ``output`` as the input of its
    next request."""

    id: str
    created_at: int
    output: tuple[Item, ...]
    usage: Usage
    object: Literal["response.compaction"] = "response.compaction"
