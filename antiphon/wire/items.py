"""Items of a conversation.

One class represents an item as input, as output and in lists. An optional field that is absent is
``UNSET``. A field that is always present is ``None`` when it has no value. Clients also send other
forms; ``wire.parsing.items`` normalizes these forms. Source of the fields: the types of the
``openai`` SDK, version 3.52.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeGuard, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, field

from antiphon.wire.json_types import JsonObject

from .parts import (
    Annotation,
    ComputerScreenshot,
    ContainerFileCitation,
    EncryptedContent,
    FileCitation,
    FilePath,
    InputAudio,
    InputFile,
    InputImage,
    InputText,
    InputVideo,
    Logprob,
    OutputText,
    Part,
    PlainText,
    ReasoningText,
    Refusal,
    SummaryText,
    ToolOutput,
    TopLogprob,
    UrlCitation,
)
from .text_formats import Effort, JsonSchemaFormat, PlainFormat
from .tools import Tool

__all__ = [
    "INPUT_ITEMS",
    "OUTPUT_ITEMS",
    "AdditionalTools",
    "AgentMessage",
    "Annotation",
    "ApplyPatchCall",
    "ApplyPatchCallOutput",
    "Caller",
    "CodeInterpreterCall",
    "Compaction",
    "CompactionTrigger",
    "ComputerCall",
    "ComputerCallOutput",
    "ComputerScreenshot",
    "ConfigurationUpdate",
    "ContainerFileCitation",
    "ContextCompaction",
    "CustomToolCall",
    "CustomToolCallOutput",
    "DirectCaller",
    "EffortUpdate",
    "EncryptedContent",
    "FileCitation",
    "FilePath",
    "FileSearchCall",
    "FormatUpdate",
    "FunctionCall",
    "FunctionCallOutput",
    "ImageGenerationCall",
    "InputAudio",
    "InputFile",
    "InputImage",
    "InputText",
    "InputVideo",
    "Item",
    "ItemBase",
    "ItemReference",
    "ItemStatus",
    "LocalShellCall",
    "LocalShellCallOutput",
    "Logprob",
    "McpApprovalRequest",
    "McpApprovalResponse",
    "McpCall",
    "McpListTools",
    "Message",
    "ModelCall",
    "OutputText",
    "Part",
    "Phase",
    "PlainText",
    "Program",
    "ProgramCaller",
    "ProgramOutput",
    "Reasoning",
    "ReasoningText",
    "Refusal",
    "ShellCall",
    "ShellCallOutput",
    "SummaryText",
    "ToolOutput",
    "ToolSearchCall",
    "ToolSearchOutput",
    "TopLogprob",
    "UrlCitation",
    "WebSearchCall",
    "is_model_call",
    "of_type",
]

_T = TypeVar("_T", bound="ItemBase")
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Phase = Literal["commentary", "final_answer"]

# OpenAI's limits for fields that clients send. Its limit for `call_id` is 64; models that write
# their own ids (Kimi K2) need more, and clients must be able to send back what the server emits.
_EncryptedContent = Annotated[str, Meta(max_length=20_971_520)]
_CallId = Annotated[str, Meta(min_length=1, max_length=256)]
_Id = Annotated[str, Meta(max_length=1024)]
#: The end of the types of all calls of tools.
_CALL = "_call"
#: The end of the types of all items that contain the output of another item.
_OUTPUT = "_output"


class DirectCaller(Struct, frozen=True, tag_field="type", tag="direct"):
    """The caller of a tool: the model itself."""


class ProgramCaller(Struct, frozen=True, tag_field="type", tag="program"):
    """The caller of a tool: a program that the model wrote. ``caller_id``: the ``call_id`` of the
    program's item."""

    caller_id: _CallId


#: The caller of a tool. Items have it only if the request enables programmatic tool calls.
Caller = DirectCaller | ProgramCaller


class ItemBase(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base class of all items. ``id`` is empty only until the server assigns an id.

    The properties, such as ``call_id`` and ``status``, can be read of any item. Only the classes
    that declare them as fields send and accept them. For items of the other classes, they have the
    values that are defined here.
    """

    #: Whether the item is a ``Message``, and whether it is a ``Reasoning``.
    is_message: ClassVar[bool] = False
    is_reasoning: ClassVar[bool] = False
    #: Whether the item is an output whose field ``id`` may name its call.
    id_names_call: ClassVar[bool] = False

    id: _Id = ""

    @property
    def type(self) -> str:
        """The type of the item, such as ``message``."""
        return str(self.__struct_config__.tag)

    @property
    def tool_type(self) -> str | None:
        """The type of the tool that the item calls, such as ``web_search`` for an item of the type
        ``web_search_call``. None: the item is no call of a tool."""
        return _tool_type(type(self))

    @property
    def call_id(self) -> str | UnsetType | None:
        """The id that a call and its output have in common."""
        return None

    @property
    def named_call(self) -> str:
        """The id with which an item names the call that it is or answers; "" if it names none."""
        return self.call_id or ""

    @property
    def status(self) -> str:
        """An item without a status is always complete."""
        return "completed"

    @property
    def caller(self) -> Caller | UnsetType:
        """Who made the call. UNSET: the model."""
        return UNSET

    @property
    def namespace(self) -> str | UnsetType | None:
        """The namespace of the function that the item calls."""
        return None

    @property
    def async_(self) -> bool | UnsetType:
        """Whether the item is an asynchronous call: the model goes on before the client answers
        it, and the client may answer it in any later request."""
        return UNSET

    @property
    def answer_key(self) -> str | UnsetType | None:
        """The id with which an answer refers to the item. An answer is the output of a call, or the
        response to an approval request."""
        return self.call_id

    @property
    def answered_key(self) -> str | UnsetType | None:
        """The ``answer_key`` of the item that this item answers. None: the item is no answer."""
        return self.call_id if self.type.endswith(_OUTPUT) else None

    @property
    def approval_request_id(self) -> str | UnsetType | None:
        """The id of the approval request to which the item belongs."""
        return None

    @property
    def added_tools(self) -> tuple[Tool, ...]:
        """The tools that are available from this item on."""
        return ()

    @property
    def role(self) -> str:
        """The role of the author of a message, such as ``user``. "": the item has no role."""
        return ""

    @property
    def phase(self) -> Phase | UnsetType:
        """The phase of the response to which a message belongs."""
        return UNSET

    @property
    def message_parts(self) -> tuple[Part, ...]:
        """The content of a message. An item that is no message has none."""
        return ()

    @property
    def reasoning_parts(self) -> tuple[ReasoningText, ...] | tuple[SummaryText, ...]:
        """The text of a reasoning item, or its summary if the text is not known. Other items have
        none."""
        return ()

    @property
    def container_id(self) -> str | None:
        """The id of the container in which the call ran. None: the item is no call in a
        container."""
        return None


@cache
def _tool_type(item_type: type[ItemBase]) -> str | None:
    tag = str(item_type.__struct_config__.tag)
    return tag.removesuffix(_CALL) if tag.endswith(_CALL) else None


class Message(ItemBase, frozen=True, kw_only=True, tag="message"):
    is_message: ClassVar[bool] = True

    role: Literal[
        "user", "assistant", "system", "developer", "unknown", "critic", "discriminator", "tool"
    ]
    content: tuple[Part, ...]
    status: ItemStatus = "completed"
    phase: Phase | UnsetType = UNSET

    @property
    def message_parts(self) -> tuple[Part, ...]:
        """The content of the message."""
        return self.content


class Reasoning(ItemBase, frozen=True, kw_only=True, tag="reasoning"):
    """Reasoning of the model. ``content``: the text of the reasoning. ``summary``: a summary of the
    reasoning for users. ``encrypted_content``: the reasoning in encrypted form."""

    is_reasoning: ClassVar[bool] = True

    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] | UnsetType = UNSET
    encrypted_content: _EncryptedContent | UnsetType = UNSET
    status: ItemStatus = "completed"

    @property
    def reasoning_parts(self) -> tuple[ReasoningText, ...] | tuple[SummaryText, ...]:
        """The text of the reasoning, or its summary if the text is not known."""
        return self.content or self.summary


class FunctionCall(ItemBase, frozen=True, kw_only=True, tag="function_call"):
    """A call of a client function. ``arguments`` is JSON text as the model wrote it. ``call_id``
    links the call to its output.
    """

    call_id: _CallId
    name: str
    arguments: str
    status: ItemStatus = "completed"
    namespace: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET
    async_: bool | UnsetType = field(default=UNSET, name="async")
    created_by: str | UnsetType = UNSET


class FunctionCallOutput(ItemBase, frozen=True, kw_only=True, tag="function_call_output"):
    """The output of a function. An output without ``call_id`` names the function instead, and the
    server finds the call (``resources.input_items``). Stored outputs have a ``call_id``."""

    call_id: _CallId | UnsetType = UNSET
    output: ToolOutput
    status: ItemStatus = "completed"
    name: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET
    created_by: str | UnsetType = UNSET


class CustomToolCall(ItemBase, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool. ``input`` is free text."""

    call_id: _CallId
    name: str
    input: str
    status: ItemStatus = "completed"
    namespace: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET
    async_: bool | UnsetType = field(default=UNSET, name="async")
    created_by: str | UnsetType = UNSET


class CustomToolCallOutput(ItemBase, frozen=True, kw_only=True, tag="custom_tool_call_output"):
    call_id: _CallId
    output: ToolOutput
    status: ItemStatus = "completed"
    name: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET
    created_by: str | UnsetType = UNSET


class FileSearchCall(ItemBase, frozen=True, kw_only=True, tag="file_search_call"):
    """A search of files. ``results`` is set only if the request asks for it with ``include``.

    ``passage_files`` is an extension. It lists ``file_id`` and ``filename`` of each passage that
    the model was shown, in order. If an item has no ``results``, later responses need this list to
    cite its passages.
    """

    queries: tuple[str, ...]
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"] = "completed"
    results: tuple[JsonObject, ...] | None = None
    passage_files: tuple[JsonObject, ...] | UnsetType = UNSET


class WebSearchCall(ItemBase, frozen=True, kw_only=True, tag="web_search_call"):
    """A call of the web search. The type of ``action`` is ``search``, ``open_page`` or
    ``find_in_page``."""

    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"] = "completed"
    action: JsonObject | UnsetType = UNSET
    results: tuple[JsonObject, ...] | UnsetType = UNSET


class CodeInterpreterCall(ItemBase, frozen=True, kw_only=True, tag="code_interpreter_call"):
    """A call of the code interpreter.

    In OpenAI's API, this item and MCP items have no field ``caller``. Antiphon adds the field if a
    program that the model wrote made the call.
    """

    container_id: str
    code: str | None = None
    outputs: tuple[JsonObject, ...] | None = None
    status: Literal["in_progress", "interpreting", "completed", "incomplete", "failed"] = (
        "completed"
    )
    caller: Caller | UnsetType = UNSET


class ImageGenerationCall(ItemBase, frozen=True, kw_only=True, tag="image_generation_call"):
    """A call that generates an image. ``result`` is the image in base64."""

    result: str | None = None
    status: Literal["in_progress", "generating", "completed", "failed"] = "completed"
    action: str | UnsetType = UNSET
    background: str | UnsetType = UNSET
    error: Any | UnsetType = UNSET
    output_format: str | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    revised_prompt: str | UnsetType = UNSET
    size: str | UnsetType = UNSET
    svg_usage: JsonObject | UnsetType = UNSET


class ComputerCall(ItemBase, frozen=True, kw_only=True, tag="computer_call"):
    call_id: _CallId
    pending_safety_checks: tuple[JsonObject, ...] = ()
    status: ItemStatus = "completed"
    action: JsonObject | UnsetType = UNSET
    actions: tuple[JsonObject, ...] | UnsetType = UNSET


class ComputerCallOutput(ItemBase, frozen=True, kw_only=True, tag="computer_call_output"):
    call_id: _CallId
    output: ComputerScreenshot
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "completed"
    acknowledged_safety_checks: tuple[JsonObject, ...] | UnsetType = UNSET
    created_by: str | UnsetType = UNSET


class LocalShellCall(ItemBase, frozen=True, kw_only=True, tag="local_shell_call"):
    call_id: _CallId
    action: JsonObject
    status: ItemStatus = "completed"


class LocalShellCallOutput(ItemBase, frozen=True, kw_only=True, tag="local_shell_call_output"):
    """OpenAI's clients put the id of the call into ``id``. Other clients set ``call_id``."""

    output: str
    status: ItemStatus = "completed"
    call_id: _CallId | UnsetType = UNSET

    id_names_call: ClassVar[bool] = True

    @property
    def named_call(self) -> str:
        return self.call_id or self.id


class ShellCall(ItemBase, frozen=True, kw_only=True, tag="shell_call"):
    call_id: _CallId
    action: JsonObject
    status: ItemStatus = "completed"
    environment: JsonObject | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET
    created_by: str | UnsetType = UNSET

    @property
    def container_id(self) -> str | None:
        """The id of the container, as the client or the server has written it."""
        environment = self.environment if isinstance(self.environment, dict) else {}
        container_id = environment.get("container_id")
        return container_id if isinstance(container_id, str) else None


class ShellCallOutput(ItemBase, frozen=True, kw_only=True, tag="shell_call_output"):
    call_id: _CallId
    output: tuple[JsonObject, ...]
    status: ItemStatus = "completed"
    max_output_length: int | None = None
    caller: Caller | UnsetType = UNSET
    created_by: str | UnsetType = UNSET


class ApplyPatchCall(ItemBase, frozen=True, kw_only=True, tag="apply_patch_call"):
    call_id: _CallId
    operation: JsonObject
    status: Literal["in_progress", "completed"] = "completed"
    caller: Caller | UnsetType = UNSET
    created_by: str | UnsetType = UNSET


class ApplyPatchCallOutput(ItemBase, frozen=True, kw_only=True, tag="apply_patch_call_output"):
    call_id: _CallId
    status: Literal["completed", "failed"] = "completed"
    output: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET
    created_by: str | UnsetType = UNSET


class McpListTools(ItemBase, frozen=True, kw_only=True, tag="mcp_list_tools"):
    """The list of an MCP server's tools. If a tool has no ``description`` or no ``annotations``,
    its entry in ``tools`` omits the field. The field is never null."""

    server_label: str
    tools: tuple[JsonObject, ...]
    error: Any | UnsetType = UNSET


class McpApprovalRequest(ItemBase, frozen=True, kw_only=True, tag="mcp_approval_request"):
    server_label: str
    name: str
    arguments: str
    caller: Caller | UnsetType = UNSET

    @property
    def namespace(self) -> str:
        """The functions of an MCP server have its label as their namespace."""
        return self.server_label

    @property
    def answer_key(self) -> str:
        """The response to the request repeats its id."""
        return self.id


class McpApprovalResponse(ItemBase, frozen=True, kw_only=True, tag="mcp_approval_response"):
    approval_request_id: str
    approve: bool
    reason: str | UnsetType = UNSET

    @property
    def answered_key(self) -> str:
        """The id of the approval request."""
        return self.approval_request_id


class McpCall(ItemBase, frozen=True, kw_only=True, tag="mcp_call"):
    server_label: str
    name: str
    arguments: str
    status: Literal["in_progress", "completed", "incomplete", "calling", "failed"] = "completed"
    output: str | None = None
    error: Any | None = None
    approval_request_id: str | UnsetType = UNSET
    caller: Caller | UnsetType = UNSET

    @property
    def namespace(self) -> str:
        """The functions of an MCP server have its label as their namespace."""
        return self.server_label


class ToolSearchCall(ItemBase, frozen=True, kw_only=True, tag="tool_search_call"):
    arguments: Any
    call_id: _CallId | None = None
    execution: Literal["server", "client"] = "server"
    status: ItemStatus = "completed"
    created_by: str | UnsetType = UNSET


class ToolSearchOutput(ItemBase, frozen=True, kw_only=True, tag="tool_search_output"):
    tools: tuple[Tool, ...]
    call_id: _CallId | None = None
    execution: Literal["server", "client"] = "server"
    status: ItemStatus = "completed"
    created_by: str | UnsetType = UNSET

    @property
    def added_tools(self) -> tuple[Tool, ...]:
        """The tools that the search has found."""
        return self.tools


class AdditionalTools(ItemBase, frozen=True, kw_only=True, tag="additional_tools"):
    """Tools that are available from this point of the conversation on."""

    tools: tuple[Tool, ...]
    role: str = "developer"

    @property
    def added_tools(self) -> tuple[Tool, ...]:
        """All tools of the item."""
        return self.tools


class Compaction(ItemBase, frozen=True, kw_only=True, tag="compaction"):
    """A compaction. ``summary``: the summary as readable text, which is only for the client. It is
    set if the request asks for it with ``show_summary``."""

    encrypted_content: _EncryptedContent
    created_by: str | UnsetType = UNSET
    summary: str | UnsetType = UNSET


class ContextCompaction(ItemBase, frozen=True, kw_only=True, tag="context_compaction"):
    """Codex's form of a compaction. Without ``encrypted_content``, it only marks the place where
    the client has compacted the conversation."""

    encrypted_content: _EncryptedContent | UnsetType = UNSET


class AgentMessage(ItemBase, frozen=True, kw_only=True, tag="agent_message"):
    """A message from one agent of the client to another: the task of a sub-agent, or its report.
    ``author`` and ``recipient`` are the paths of the agents, such as ``/root``."""

    author: str
    recipient: str
    content: str | tuple[Part, ...] | None = None
    agent: JsonObject | UnsetType = UNSET


class CompactionTrigger(ItemBase, frozen=True, kw_only=True, tag="compaction_trigger"):
    """An input item that asks the server to compact the conversation. It must be the last input
    item, and the response consists of one compaction item."""


class EffortUpdate(Struct, frozen=True, kw_only=True):
    effort: Effort


class FormatUpdate(Struct, frozen=True, kw_only=True):
    format: PlainFormat | JsonSchemaFormat


class ConfigurationUpdate(ItemBase, frozen=True, kw_only=True, tag="configuration_update"):
    """Settings for reasoning and text that apply from this point of the conversation on. At least
    one of the two is set."""

    reasoning: EffortUpdate | UnsetType = UNSET
    text: FormatUpdate | UnsetType = UNSET


class ItemReference(ItemBase, frozen=True, kw_only=True, tag="item_reference"):
    """A reference to a stored item."""


class Program(ItemBase, frozen=True, kw_only=True, tag="program"):
    """A program that the model wrote. ``code`` is JavaScript. The calls that the program makes
    refer to this item in their field ``caller``."""

    call_id: _CallId
    code: str
    fingerprint: str


class ProgramOutput(ItemBase, frozen=True, kw_only=True, tag="program_output"):
    call_id: _CallId
    result: str
    status: Literal["completed", "incomplete"] = "completed"


Item = (
    Message
    | Reasoning
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | FileSearchCall
    | WebSearchCall
    | CodeInterpreterCall
    | ImageGenerationCall
    | ComputerCall
    | ComputerCallOutput
    | LocalShellCall
    | LocalShellCallOutput
    | ShellCall
    | ShellCallOutput
    | ApplyPatchCall
    | ApplyPatchCallOutput
    | McpListTools
    | McpApprovalRequest
    | McpApprovalResponse
    | McpCall
    | ToolSearchCall
    | ToolSearchOutput
    | AdditionalTools
    | Compaction
    | ContextCompaction
    | AgentMessage
    | CompactionTrigger
    | ConfigurationUpdate
    | ItemReference
    | Program
    | ProgramOutput
)

#: A call as models write it: of a function of the client or of the server, or of a custom tool.
ModelCall = FunctionCall | CustomToolCall

#: Items that only clients send. All other items may also occur in an output.
_INPUT_ONLY = (
    AgentMessage,
    CompactionTrigger,
    ConfigurationUpdate,
    ContextCompaction,
    ItemReference,
)

INPUT_ITEMS: tuple[type[ItemBase], ...] = tuple(Item.__args__)
OUTPUT_ITEMS: tuple[type[ItemBase], ...] = tuple(
    item for item in INPUT_ITEMS if item not in _INPUT_ONLY
)


def is_model_call(item: ItemBase | None) -> TypeGuard[ModelCall]:
    """Return whether the item is a ``ModelCall``."""
    return isinstance(item, ModelCall)


def of_type(items: Iterable[ItemBase], cls: type[_T]) -> Iterator[_T]:
    """Yield the items of one type."""
    return (item for item in items if isinstance(item, cls))
