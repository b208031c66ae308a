"""What a client may ask: the body of ``POST /responses`` and of its token count.

``None`` means "not given" for every field. ``FIELDS`` says what becomes of each: nothing that is
accepted is ignored in silence. The decoder (``wire.decode``) makes these values; it has no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct

from antiphon.errors import InvalidRequest

from .items import Item
from .response import ReasoningConfig, TextConfig
from .tools import Tool, ToolChoice

__all__ = ["FIELDS", "INCLUDES", "CreateResponse", "Fate", "InputTokens", "refuse_unsupported"]

Json = dict[str, Any]

#: What becomes of a field. ``honoured``: it changes what happens. ``echoed``: it is the client's
#: own label and comes back in the response. ``hint``: it may change how fast, never what.
#: ``refused``: asking for it is a 400 that names it.
Fate = Literal["honoured", "echoed", "hint", "refused"]

INCLUDES = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
)


class CreateResponse(Struct, frozen=True, kw_only=True):
    """A request for a response. Fields after ``user`` are extensions that self-hosted servers
    share; Open Responses adds the two penalties."""

    model: str | None = None
    input: tuple[Item, ...] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | Json | None = None
    prompt: Json | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: tuple[str, ...] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: Json | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: tuple[Json, ...] | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Json | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    moderation: Json | None = None
    image: Json | None = None
    access_programs: Json | None = None
    user: str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    logit_bias: dict[int, float] | None = None
    chat_template_kwargs: Json | None = None
    client_metadata: Any = None


class InputTokens(Struct, frozen=True, kw_only=True):
    """A request to count what the model would see: the fields of ``CreateResponse`` that say it."""

    model: str | None = None
    input: tuple[Item, ...] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | Json | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    personality: str | None = None

    def as_create(self) -> CreateResponse:
        """The request whose input is to be counted."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        del fields["personality"]
        return CreateResponse(**fields)


FIELDS: Mapping[str, Fate] = {
    "model": "honoured",
    "input": "honoured",
    "instructions": "honoured",
    "previous_response_id": "honoured",
    "conversation": "refused",
    "prompt": "refused",
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
    "background": "refused",
    "truncation": "honoured",
    "context_management": "refused",
    "metadata": "echoed",
    "prompt_cache_key": "hint",
    "prompt_cache_options": "hint",
    "prompt_cache_retention": "hint",
    "safety_identifier": "echoed",
    "service_tier": "hint",
    "moderation": "refused",
    "image": "refused",
    "access_programs": "hint",
    "user": "echoed",
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
}

#: Refused fields whose value asks for nothing after all.
_IDLE: Mapping[str, Callable[[Any], bool]] = {
    "background": lambda value: value is False,
    "context_management": lambda value: not value,
    "image": lambda value: value.get("context_compression") in (None, "auto", "disabled"),
}


def refuse_unsupported(request: CreateResponse) -> None:
    """Raises ``InvalidRequest`` that names the first field which asks for what does not exist."""
    for name, fate in FIELDS.items():
        value = getattr(request, name)
        if fate == "refused" and value is not None and not _IDLE.get(name, _never)(value):
            raise _unsupported(name)
    if (request.prompt_cache_options or {}).get("prewarm"):
        raise _unsupported("prompt_cache_options.prewarm")
    reasoning = request.reasoning
    if reasoning is not None and reasoning.mode not in (UNSET, "standard"):
        raise _unsupported("reasoning.mode")


def _never(value: Any) -> bool:
    return False


def _unsupported(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported parameter: '{param}' is not supported by this server.",
        param=param,
        code="unsupported_parameter",
    )
