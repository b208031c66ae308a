"""Tools that a request declares, and ``tool_choice``.

In responses, a tool of the type ``function`` contains ``description``, ``parameters`` and
``strict`` even if they are null, as Open Responses requires. Other tools omit absent fields. Source
of the fields: the types of the ``openai`` SDK, version 3.52.
"""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from antiphon.wire.json_types import EncodedText, JsonObject

from .tags import tag_of

__all__ = [
    "HOSTED_CHOICES",
    "AnyWebSearch",
    "ApplyPatch",
    "Callers",
    "CodeInterpreter",
    "Computer",
    "ComputerUsePreview",
    "Custom",
    "CustomFormat",
    "FileSearch",
    "Function",
    "GrammarFormat",
    "HostedTool",
    "ImageGeneration",
    "LocalShell",
    "Mcp",
    "Namespace",
    "ProgrammaticToolCalling",
    "SharedTools",
    "Shell",
    "TextFormat",
    "Tool",
    "ToolBase",
    "ToolChoiceObject",
    "ToolChoiceParam",
    "ToolSearch",
    "WebFetch",
    "WebSearch",
    "WebSearchDated",
    "WebSearchPreview",
    "WebSearchPreviewDated",
]

_encode = msgspec.json.Encoder().encode

#: Shorter JSON is not compressed: it has room in one page of a database.
_MIN_PACKED_BYTES = 4096
#: How many times tools are stored before they are compressed. Compressing them takes about as long
#: as storing them eight times.
_UNPACKED_USES = 8
#: Level of the compression. A higher one takes twice as long and saves a tenth.
_LEVEL = 1

#: Who may call a tool: the model directly, or programs that it writes. Default: the model.
Callers = Annotated[tuple[Literal["direct", "programmatic"], ...], Meta(min_length=1)]


class ToolBase(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base class of all tools."""

    @property
    def type(self) -> str:
        """The type of the tool, such as ``web_search``."""
        return str(self.__struct_config__.tag)


class Function(ToolBase, frozen=True, kw_only=True, tag="function"):
    """A function that the client runs. ``parameters`` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    output_schema: JsonObject | UnsetType = UNSET
    async_: bool | UnsetType = field(default=UNSET, name="async")
    defer_loading: bool | UnsetType = UNSET
    allowed_callers: Callers | UnsetType = UNSET


class TextFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """The input of a custom tool is any text."""


class GrammarFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="grammar"):
    """The input of a custom tool must match a grammar."""

    syntax: Literal["lark", "regex"]
    definition: str


CustomFormat = TextFormat | GrammarFormat


class Custom(ToolBase, frozen=True, kw_only=True, tag="custom"):
    """A tool that the client runs and whose input is free text."""

    name: str
    description: str | UnsetType = UNSET
    format: CustomFormat | UnsetType = UNSET
    async_: bool | UnsetType = field(default=UNSET, name="async")
    defer_loading: bool | UnsetType = UNSET
    allowed_callers: Callers | UnsetType = UNSET


class Namespace(ToolBase, frozen=True, kw_only=True, tag="namespace"):
    """A named group of client tools. Calls of these tools have the name of the group in their field
    ``namespace``."""

    name: str
    tools: tuple[Function | Custom, ...]
    description: str | UnsetType = UNSET


class ToolSearch(ToolBase, frozen=True, kw_only=True, tag="tool_search"):
    """``name``: the name that a client of the Messages API gave the tool. OpenAI's API does not
    have this field."""

    name: str | UnsetType = UNSET
    execution: Literal["server", "client"] | UnsetType = UNSET
    description: str | UnsetType = UNSET
    parameters: Any | UnsetType = UNSET


class _WebSearch(ToolBase, frozen=True, kw_only=True):
    """``max_content_tokens``: about how many tokens of a page the model sees. OpenAI's API does not
    have this field."""

    filters: JsonObject | UnsetType = UNSET
    search_context_size: Literal["low", "medium", "high"] | UnsetType = UNSET
    user_location: JsonObject | UnsetType = UNSET
    external_web_access: bool | UnsetType = UNSET
    search_content_types: tuple[str, ...] | UnsetType = UNSET
    max_content_tokens: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class WebSearch(_WebSearch, frozen=True, kw_only=True, tag="web_search"):
    pass


class WebSearchDated(_WebSearch, frozen=True, kw_only=True, tag="web_search_2025_08_26"):
    pass


class WebSearchPreview(_WebSearch, frozen=True, kw_only=True, tag="web_search_preview"):
    pass


class WebSearchPreviewDated(
    _WebSearch, frozen=True, kw_only=True, tag="web_search_preview_2025_03_11"
):
    pass


class WebFetch(_WebSearch, frozen=True, kw_only=True, tag="web_fetch"):
    """Opens web pages whose URLs are in the conversation. OpenAI's API does not have this tool.
    ``citations``: whether the model cites pages."""

    citations: bool | UnsetType = UNSET


#: All versions of the web search, and the tool that only opens pages.
AnyWebSearch = WebSearch | WebSearchDated | WebSearchPreview | WebSearchPreviewDated | WebFetch


class FileSearch(ToolBase, frozen=True, kw_only=True, tag="file_search"):
    vector_store_ids: tuple[str, ...]
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | UnsetType = UNSET
    filters: JsonObject | UnsetType = UNSET
    ranking_options: JsonObject | UnsetType = UNSET


class CodeInterpreter(ToolBase, frozen=True, kw_only=True, tag="code_interpreter"):
    #: OpenAI's API requires it. Clients of gpt-oss's servers leave it out.
    container: str | JsonObject = field(default_factory=lambda: {"type": "auto"})
    allowed_callers: Callers | UnsetType = UNSET


class ImageGeneration(ToolBase, frozen=True, kw_only=True, tag="image_generation"):
    action: str | UnsetType = UNSET
    background: str | UnsetType = UNSET
    input_fidelity: str | UnsetType = UNSET
    input_image_mask: JsonObject | UnsetType = UNSET
    model: str | UnsetType = UNSET
    moderation: str | UnsetType = UNSET
    output_compression: Annotated[int, Meta(ge=0, le=100)] | UnsetType = UNSET
    output_format: str | UnsetType = UNSET
    partial_images: Annotated[int, Meta(ge=0, le=3)] | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    size: str | UnsetType = UNSET
    complexity: Any | UnsetType = UNSET
    frame_count: int | UnsetType = UNSET
    frame_duration_ms: int | UnsetType = UNSET
    svg: Any | UnsetType = UNSET


class Mcp(ToolBase, frozen=True, kw_only=True, tag="mcp"):
    """A remote MCP server. ``authorization`` and ``headers`` are secrets that Antiphon sends to
    this MCP server. Antiphon never stores them, and never returns them in responses.
    ``defer_loading``: whether the model has to search for the tools of this MCP server.
    ``deferred_tools``: not in OpenAI's API: only these tools have to be searched for, by names or
    by a filter as in ``allowed_tools``."""

    server_label: str
    server_url: str | UnsetType = UNSET
    connector_id: str | UnsetType = UNSET
    tunnel_id: Annotated[str, Meta(pattern="^tunnel_[a-z0-9]{32}$")] | UnsetType = UNSET
    authorization: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    allowed_tools: tuple[str, ...] | JsonObject | UnsetType = UNSET
    require_approval: str | JsonObject | UnsetType = UNSET
    server_description: str | UnsetType = UNSET
    defer_loading: bool | UnsetType = UNSET
    deferred_tools: tuple[str, ...] | JsonObject | UnsetType = UNSET
    allowed_callers: Callers | UnsetType = UNSET


class Computer(ToolBase, frozen=True, kw_only=True, tag="computer"):
    pass


class ComputerUsePreview(ToolBase, frozen=True, kw_only=True, tag="computer_use_preview"):
    display_width: int
    display_height: int
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"]


class LocalShell(ToolBase, frozen=True, kw_only=True, tag="local_shell"):
    pass


class Shell(ToolBase, frozen=True, kw_only=True, tag="shell"):
    environment: JsonObject | UnsetType = UNSET
    allowed_callers: Callers | UnsetType = UNSET


class ApplyPatch(ToolBase, frozen=True, kw_only=True, tag="apply_patch"):
    allowed_callers: Callers | UnsetType = UNSET


class ProgrammaticToolCalling(ToolBase, frozen=True, kw_only=True, tag="programmatic_tool_calling"):
    pass


Tool = (
    Function
    | Custom
    | Namespace
    | ToolSearch
    | WebSearch
    | WebSearchDated
    | WebSearchPreview
    | WebSearchPreviewDated
    | WebFetch
    | FileSearch
    | CodeInterpreter
    | ImageGeneration
    | Mcp
    | Computer
    | ComputerUsePreview
    | LocalShell
    | Shell
    | ApplyPatch
    | ProgrammaticToolCalling
)


class SharedTools(tuple[Tool, ...]):
    """Tools that many requests have in common. They contain no secrets. ``instructions``: the
    instructions that all these requests have."""

    instructions: EncodedText | None = None
    _uses = 0

    @cached_property
    def json(self) -> Raw:
        """The tools as JSON."""
        return Raw(_encode(self))

    def pack(self) -> bytes | None:
        """Return the tools and the instructions in the form in which a store keeps them: compressed
        JSON. Returns None if they are short, and in the first few calls."""
        self._uses += 1
        return self._packed if self._uses > _UNPACKED_USES else None

    @cached_property
    def _packed(self) -> bytes | None:
        instructions = b"null" if self.instructions is None else self.instructions.json
        content = b"%b\n%b" % (self.json, instructions)
        return zlib.compress(content, _LEVEL) if len(content) >= _MIN_PACKED_BYTES else None

    @classmethod
    def unpack(cls, content: bytes) -> tuple[SharedTools, bytes]:
        """Return the tools at the beginning of ``content``, which ``pack`` has made, with their
        instructions, and the bytes after them. Raises ``msgspec.DecodeError``."""
        decompressor = zlib.decompressobj()
        try:
            json, _, text = decompressor.decompress(content).partition(b"\n")
        except zlib.error as error:
            raise msgspec.DecodeError(str(error)) from error
        tools, rest = cls(_decode_tools(json)), decompressor.unused_data
        if (instructions := _decode_text(text)) is not None:
            tools.instructions = EncodedText(instructions, Raw(text))
        tools.json, tools._uses = Raw(json), _UNPACKED_USES
        tools._packed = content.removesuffix(rest)
        return tools, rest


_decode_tools = msgspec.json.Decoder(tuple[Tool, ...]).decode
_decode_text = msgspec.json.Decoder(str | None).decode


# --- tool_choice ---------------------------------------------------------------------------------

#: Tools that ``tool_choice`` cannot name by their type alone.
_NAMED_TOOLS = (Function, Custom, Namespace, Mcp)
#: ``tool_choice`` types that name a tool by its type alone.
HOSTED_CHOICES: tuple[str, ...] = (
    *(tag_of(tool) for tool in Tool.__args__ if tool not in _NAMED_TOOLS),
    "computer_use",
)


#: Types of tools to which an API key can be limited, in their usual spelling. Functions are not
#: among them.
HostedTool = Literal[
    "apply_patch",
    "code_interpreter",
    "computer",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_fetch",
    "web_search",
]


class ToolChoiceObject(Struct, frozen=True, kw_only=True):
    """``tool_choice`` as an object. It names one tool, for example by ``type`` and ``name``. If its
    type is ``allowed_tools``, it contains a mode and a list of tools instead."""

    type: str
    name: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    server_label: str | UnsetType = UNSET
    mode: Literal["auto", "required", "none"] | UnsetType = UNSET
    tools: tuple[ToolChoiceObject, ...] | UnsetType = UNSET


ToolChoiceParam = Literal["none", "auto", "required"] | ToolChoiceObject
