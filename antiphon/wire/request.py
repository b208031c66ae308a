"""Request bodies: create a response, count its input tokens, compact a conversation.

``None`` means that a field was not set. ``FIELDS`` lists how Antiphon treats each field, so no
accepted field is silently ignored. ``wire.parsing.requests`` creates the objects of these classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args

from msgspec import UNSET, Meta, Struct

from antiphon.errors import unsupported_parameter
from antiphon.wire.json_types import JsonObject

from .extensions import StructuredOutputs
from .items import CompactionTrigger, Item
from .request_options import (
    AccessPrograms,
    BackgroundOptions,
    ImageOptions,
    ModerationConfig,
    MultiAgent,
    PromptCacheRequest,
)
from .response import (
    ContextManagement,
    ConversationRef,
    PromptRef,
    ReasoningConfig,
    TextConfig,
)
from .tools import Tool, ToolChoiceParam

__all__ = [
    "FIELDS",
    "INCLUDES",
    "CompactRequest",
    "CreateResponse",
    "FieldTreatment",
    "Include",
    "InputTokensRequest",
    "PreviousMessages",
    "StreamOptions",
    "refuse_unsupported",
]


#: How the server treats a field. ``honoured``: it changes the answer. ``echoed``: it is returned in
#: the response. ``hint``: it may change the speed, never the answer. ``refused``: the request
#: returns 400 with an error that names the field.
FieldTreatment = Literal["honoured", "echoed", "hint", "refused"]

Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
INCLUDES: tuple[Include, ...] = get_args(Include)

# Bounds are OpenAI's if it documents them, except that `max_output_tokens` may be 1: clients warm
# up with it. Other bounds keep numbers within the types of the engines.
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Fraction = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Key = Annotated[str, Meta(max_length=256)]


class StreamOptions(Struct, frozen=True, kw_only=True):
    """Options of a stream. ``include_obfuscation``: pad the deltas, so that the sizes of the
    events do not reveal the lengths of the texts."""

    include_obfuscation: bool | None = None


class PreviousMessages(Struct, frozen=True, kw_only=True):
    """The content of ``previous_input_messages``, translated to items.

    ``token_ids``: the tokens of these items, if the client sent back the raw messages of a
    response. ``tokenizer``: fingerprint of the tokenizer that made the tokens.
    """

    items: tuple[Item, ...] = ()
    token_ids: tuple[int, ...] = ()
    tokenizer: str | None = None


class CreateResponse(Struct, frozen=True, kw_only=True):
    """A request for a response.

    ``multi_agent`` is a field of OpenAI's beta API. The fields after ``multi_agent`` are extensions
    that self-hosted servers have in common. Two of these fields, ``presence_penalty`` and
    ``frequency_penalty``, are also part of Open Responses.
    """

    model: _Key | None = None
    input: tuple[Item, ...] | None = None
    instructions: str | None = None
    previous_response_id: _Key | None = None
    conversation: ConversationRef | None = None
    prompt: PromptRef | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoiceParam | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: _Count | None = None
    max_output_tokens: _Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: _Fraction | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: tuple[Include, ...] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    background_options: BackgroundOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: tuple[ContextManagement, ...] | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_options: PromptCacheRequest | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    service_tier: (
        Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None
    ) = None
    moderation: ModerationConfig | None = None
    image: ImageOptions | None = None
    access_programs: AccessPrograms | None = None
    user: str | None = None
    multi_agent: MultiAgent | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: _Fraction | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: (
        Annotated[
            tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=16)
        ]
        | None
    ) = None
    logit_bias: dict[int, float] | None = None
    chat_template_kwargs: JsonObject | None = None
    client_metadata: Any = None
    thinking_token_budget: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    structured_outputs: StructuredOutputs | None = None
    include_reasoning: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    vllm_xargs: JsonObject | None = None
    mm_processor_kwargs: JsonObject | None = None
    generation_config: JsonObject | None = None
    request_id: _Key | None = None
    enable_response_messages: bool | None = None
    return_metrics: bool | None = None
    interrupted_output: Literal["restart", "fail"] | None = None
    previous_input_messages: PreviousMessages | None = None
    interrupted_tools: Literal["tell", "fail", "retry"] | None = None
    #: W3C trace context; over HTTP it comes in headers.
    trace: dict[str, str] | None = None
    #: Names of the request's fields that are unknown. The parser sets it, not the client.
    ignored_fields: tuple[str, ...] = ()
    #: Names of options that a backend ignores if it does not support them. They are set for clients
    #: of other APIs, never by the client.
    hints: tuple[str, ...] = ()

    @property
    def has_context(self) -> bool:
        """Whether the request refers to a previous response, a conversation or a stored prompt.
        Such a request needs no ``input``."""
        sources = (self.previous_response_id, self.conversation, self.prompt)
        return any(source is not None for source in sources)

    @property
    def pads_deltas(self) -> bool:
        """Whether the deltas of the stream are padded."""
        return self.stream_options is not None and bool(self.stream_options.include_obfuscation)

    @property
    def only_prewarms(self) -> bool:
        """Whether the server only caches the prompt, and generates no output."""
        return self.prompt_cache_options is not None and self.prompt_cache_options.prewarm


class InputTokensRequest(Struct, frozen=True, kw_only=True):
    """A request to count the input tokens of a response: the fields of ``CreateResponse`` that
    affect the prompt.
    """

    model: _Key | None = None
    input: tuple[Item, ...] | None = None
    instructions: str | None = None
    previous_response_id: _Key | None = None
    conversation: ConversationRef | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoiceParam | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    personality: str | None = None

    def as_create(self) -> CreateResponse:
        """Return a ``CreateResponse`` with the fields of this request. It is only used to check the
        fields and to count the tokens of the prompt. No response is created."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        del fields["personality"]
        return CreateResponse(**fields)


class CompactRequest(Struct, frozen=True, kw_only=True):
    """The body of ``POST /responses/compact``.

    The conversation to compact is ``input``. If ``previous_response_id`` is set, the conversation
    that ended with this response comes before ``input``. The other fields have the same meaning as
    in ``CreateResponse``.
    """

    model: _Key
    input: tuple[Item, ...] | None = None
    instructions: str | None = None
    previous_response_id: _Key | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_options: PromptCacheRequest | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    service_tier: Literal["auto", "default", "fast", "flex", "priority"] | None = None
    image: ImageOptions | None = None

    def as_create(self) -> CreateResponse:
        """Return a request for a response that compacts the same conversation. This response is not
        stored."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        items = self.input or ()
        if not (items and isinstance(items[-1], CompactionTrigger)):
            items = (*items, CompactionTrigger())
        return CreateResponse(**{**fields, "input": items, "store": False})


FIELDS: Mapping[str, FieldTreatment] = {
    "model": "honoured",
    "input": "honoured",
    "instructions": "honoured",
    "previous_response_id": "honoured",
    "conversation": "honoured",
    "prompt": "honoured",
    "tools": "honoured",
    "tool_choice": "honoured",
    "parallel_tool_calls": "honoured",
    "max_tool_calls": "honoured",
    "max_output_tokens": "honoured",
    "temperature": "honoured",
    "top_p": "honoured",
    "top_logprobs": "honoured",
    "text": "honoured",
    "reasoning": "honoured",
    "include": "honoured",
    "store": "honoured",
    "stream": "honoured",
    "stream_options": "honoured",
    "background": "honoured",
    "background_options": "honoured",
    "truncation": "honoured",
    "context_management": "honoured",
    "metadata": "echoed",
    "prompt_cache_key": "hint",
    "prompt_cache_options": "honoured",
    "prompt_cache_retention": "hint",
    "safety_identifier": "echoed",
    "service_tier": "hint",
    "moderation": "honoured",
    "image": "refused",
    "access_programs": "hint",
    "user": "echoed",
    "multi_agent": "refused",
    "presence_penalty": "honoured",
    "frequency_penalty": "honoured",
    "repetition_penalty": "honoured",
    "top_k": "honoured",
    "min_p": "honoured",
    "seed": "honoured",
    "stop": "honoured",
    "logit_bias": "honoured",
    "chat_template_kwargs": "honoured",
    "client_metadata": "echoed",
    "thinking_token_budget": "honoured",
    "structured_outputs": "honoured",
    "include_reasoning": "honoured",
    "include_stop_str_in_output": "honoured",
    "return_tokens_as_token_ids": "honoured",
    "skip_special_tokens": "refused",
    "ignore_eos": "honoured",
    "priority": "honoured",
    "cache_salt": "honoured",
    "vllm_xargs": "honoured",
    "mm_processor_kwargs": "honoured",
    "generation_config": "honoured",
    "request_id": "hint",
    "enable_response_messages": "honoured",
    "return_metrics": "honoured",
    "interrupted_output": "honoured",
    "previous_input_messages": "honoured",
    "interrupted_tools": "honoured",
    "trace": "hint",
}

_REFUSED = tuple(name for name, treatment in FIELDS.items() if treatment == "refused")

#: Refused field → function that returns whether a value has no effect. Such a value is accepted.
_NO_EFFECT: Mapping[str, Callable[[Any], bool]] = {
    "multi_agent": lambda value: not value.enabled,
    # Special tokens delimit items and are never part of a text.
    "skip_special_tokens": lambda value: value,
    "image": lambda value: value.context_compression != "enabled",
}


def refuse_unsupported(request: CreateResponse) -> None:
    """Raise ``InvalidRequest`` for the first field that asks for an unsupported feature."""
    for name in _REFUSED:
        value = getattr(request, name)
        if value is not None and not _NO_EFFECT.get(name, _never_neutral)(value):
            raise unsupported_parameter(name)
    if request.reasoning is not None and request.reasoning.mode not in (UNSET, "standard"):
        raise unsupported_parameter("reasoning.mode")


def _never_neutral(value: object) -> bool:
    return False
