"""Types of the request bodies of OpenAI's older APIs, for the OpenAPI document.

The parsers use only the types of options that the Responses API lacks. They translate the JSON of
all other fields, so errors can name a field as the client wrote it. A test checks that these types
agree with the parsers.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.fields import convert, read_object
from antiphon.wire.parsing.unsupported_fields import refuse_unsupported_fields
from antiphon.wire.parts import PromptCacheBreakpoint
from antiphon.wire.request import CreateResponse
from antiphon.wire.text_formats import Effort

from .chat_response import ChatCustomCall
from .text_inputs import TextInput

#: One text, the token ids of one text, or a list in which each entry is a text or the token ids of
#: a text.
AnyTextInput = str | tuple[int | TextInput, ...]
_Name = Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]+$", max_length=128)]


class ChatStreamOptions(Struct, frozen=True, kw_only=True):
    """Options of a stream. ``include_usage``: the stream ends with a chunk that has the usage."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class AnswerOptions(Struct, frozen=True, kw_only=True):
    """The options that both Chat Completions and Completions have, and the Responses API lacks.
    ``n``: the number of answers."""

    n: Annotated[int, Meta(ge=1, le=32)] = 1
    stream_options: ChatStreamOptions | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


_O = TypeVar("_O", bound=AnswerOptions)


class ChatOptions(AnswerOptions, frozen=True, kw_only=True):
    """The options of Chat Completions that the Responses API lacks or defines differently."""

    logprobs: bool | None = None
    store: bool | None = False
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None


class CompletionOptions(AnswerOptions, frozen=True, kw_only=True):
    """The options of Completions that the Responses API lacks."""

    echo: bool = False


def read_options(raw: JsonObject, cls: type[_O]) -> _O:
    """Return the options of a request. Raises ``InvalidRequest``."""
    return convert({name: raw[name] for name in cls.__struct_fields__ if name in raw}, cls, "")


def read_stream_options(raw: object, path: str, *_: object) -> JsonObject:
    """Return those stream options that the Responses API has too. Raises ``InvalidRequest``."""
    fields = read_object(raw, path)
    fields.pop("include_usage", None)
    refuse_unsupported_fields(fields, path=path)
    return {path: fields}


class UrlReference(Struct, frozen=True, kw_only=True):
    url: str
    detail: str | UnsetType = UNSET


class AudioData(Struct, frozen=True, kw_only=True):
    data: str
    format: str


class ChatFile(Struct, frozen=True, kw_only=True):
    file_id: str | UnsetType = UNSET
    file_data: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET


class ChatPart(Struct, frozen=True, kw_only=True):
    """A part of a message. ``type`` is the name of the field that contains the content."""

    type: Literal["text", "image_url", "input_audio", "file", "video_url", "refusal"]
    text: str | UnsetType = UNSET
    image_url: str | UrlReference | UnsetType = UNSET
    input_audio: AudioData | UnsetType = UNSET
    file: ChatFile | UnsetType = UNSET
    video_url: UrlReference | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    prompt_cache_breakpoint: PromptCacheBreakpoint | UnsetType = UNSET


class ChatCalledFunction(Struct, frozen=True, kw_only=True):
    """A call of a function: its name and its arguments. ``arguments``: JSON text."""

    name: str
    arguments: str | None = None


class ChatInputCall(Struct, frozen=True, kw_only=True):
    """A tool call in an earlier message of the model. Its content is in ``function`` or ``custom``,
    depending on ``type``."""

    id: str
    type: Literal["function", "custom"] = "function"
    function: ChatCalledFunction | UnsetType = UNSET
    custom: ChatCustomCall | UnsetType = UNSET


class ChatInputMessage(Struct, frozen=True, kw_only=True):
    """A message of the conversation. ``tool_call_id`` is only for the role ``tool``. All fields
    after ``tool_call_id`` are only for the role ``assistant``."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | tuple[ChatPart, ...] | None = None
    name: str | None = None
    tool_call_id: str | UnsetType = UNSET
    tool_calls: tuple[ChatInputCall, ...] | UnsetType = UNSET
    function_call: ChatCalledFunction | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChatFunction(Struct, frozen=True, kw_only=True):
    """A function that the model may call. ``parameters``: a JSON schema."""

    name: _Name
    description: str | UnsetType = UNSET
    parameters: JsonObject | UnsetType = UNSET
    strict: bool | UnsetType = UNSET


class ChatCustomTool(Struct, frozen=True, kw_only=True):
    """A tool whose input is free text."""

    name: _Name
    description: str | UnsetType = UNSET
    format: JsonObject | UnsetType = UNSET


class ChatTool(Struct, frozen=True, kw_only=True):
    """A tool. The definition of a function tool is in the field ``function``, and the definition of
    a custom tool is in the field ``custom``."""

    type: Literal["function", "custom"]
    function: ChatFunction | UnsetType = UNSET
    custom: ChatCustomTool | UnsetType = UNSET


class ChatNamed(Struct, frozen=True, kw_only=True):
    """Selects a tool by its name."""

    name: str


class ChatAllowedTools(Struct, frozen=True, kw_only=True):
    """The tools that the model may call. With the mode ``required``, the model must call one of
    them."""

    mode: Literal["auto", "required"]
    tools: tuple[JsonObject, ...]


class ChatToolChoice(Struct, frozen=True, kw_only=True):
    """Selects one tool that the model must call, or several tools that it may call."""

    type: Literal["function", "custom", "allowed_tools"]
    function: ChatNamed | UnsetType = UNSET
    custom: ChatNamed | UnsetType = UNSET
    allowed_tools: ChatAllowedTools | UnsetType = UNSET


class ChatJsonSchema(Struct, frozen=True, kw_only=True):
    """A JSON schema that the answer must match."""

    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]+$", max_length=64)]
    schema: JsonObject
    description: str | None = None
    strict: bool | None = None


class ChatResponseFormat(Struct, frozen=True, kw_only=True):
    """The format of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: ChatJsonSchema | UnsetType = UNSET


class ChatFields(ChatOptions, frozen=True, kw_only=True):
    """A request of the Chat Completions API. ``store``: the completion is stored, so that it can be
    retrieved and listed; ``n`` must then be 1. ``functions`` and ``function_call`` are the
    deprecated form of ``tools`` and ``tool_choice``."""

    messages: Annotated[tuple[ChatInputMessage, ...], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    tools: tuple[ChatTool, ...] | None = None
    functions: tuple[ChatFunction, ...] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChatToolChoice | None = None
    function_call: Literal["none", "auto"] | ChatNamed | None = None
    response_format: ChatResponseFormat | None = None
    reasoning_effort: Effort | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class CompletionFields(CompletionOptions, frozen=True, kw_only=True):
    """A request of the Completions API. ``prompt``: one or more texts that the model continues.
    ``n`` times the number of prompts must not exceed 32.
    """

    prompt: AnyTextInput
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 16
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


@lru_cache
def chat_completion_body(shared: frozenset[str]) -> type[Struct]:
    """Return the type of a Chat Completions request. ``shared``: names of the fields that Chat
    Completions and the Responses API have in common."""
    return _with_shared_fields("CreateChatCompletion", ChatFields, shared)


@lru_cache
def completion_body(shared: frozenset[str]) -> type[Struct]:
    """Return the type of a Completions request. ``shared``: names of the fields that Completions
    and the Responses API have in common."""
    return _with_shared_fields("CreateCompletion", CompletionFields, shared)


def _with_shared_fields(name: str, own: type[Struct], shared: Collection[str]) -> type[Struct]:
    fields = [
        (field.name, field.type, field.default)
        for field in msgspec.structs.fields(CreateResponse)
        if field.name in shared
    ]
    return msgspec.defstruct(
        name, fields, bases=(own,), namespace={"__doc__": own.__doc__}, kw_only=True, frozen=True
    )
