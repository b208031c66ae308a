"""What a request asks, in two forms: options for the backend, and the echo the client reads.

Each request field is honoured here, refused by name here, or listed as an echo in
``wire.request``. It knows no store and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.backends.base import Backend, recall_of
from antiphon.conversation import Options
from antiphon.errors import InvalidRequest
from antiphon.runs.tool_loop.toolsets import ServerTool
from antiphon.tools import tool_search as search
from antiphon.tools.allowed_callers import by_the_model, check_callers, for_programs
from antiphon.tools.base import Provider, ToolFunction
from antiphon.tools.client_tools.provider import CLIENT_TOOLS
from antiphon.wire import tools as tl
from antiphon.wire.items import ItemBase, Reasoning
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import (
    JsonSchemaFormat,
    PlainFormat,
    ReasoningConfig,
    Response,
    TextConfig,
)

__all__ = [
    "ToolSelection",
    "apply_defaults",
    "hidden_item_types",
    "initial_response",
    "options",
    "select_tools",
]

_PROGRAMS = "programmatic_tool_calling"
_SHOWN = (tl.Function, tl.Custom, tl.Namespace)
_LOGPROBS = "message.output_text.logprobs"


#: What a field means that neither the request nor the model gives: OpenAI's defaults.
_NEUTRAL: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0}


def apply_defaults(
    request: CreateResponse, defaults: Mapping[str, Any], budgets: Mapping[str, int] = {}
) -> CreateResponse:
    """The request with the model's defaults where it says nothing, so that the echo is what was
    really done. ``budgets``: effort → the most tokens of thinking."""
    effort = request.reasoning.effort if request.reasoning is not None else None
    if effort is not None and effort in budgets:
        defaults = {**defaults, "thinking_token_budget": budgets[effort]}
    missing = {
        name: value
        for name, value in {**_NEUTRAL, **defaults}.items()
        if getattr(request, name) is None
    }
    return replace(request, **missing) if missing else request


class ToolSelection(Struct, frozen=True):
    """The tools the model is to see, the types of those nobody here can run, and what becomes of
    calls that are not plain functions of the client. ``programs``: what programs of the model may
    have the client run; None where the model can write none here."""

    tools: tuple[tl.Tool, ...]
    ignored: tuple[str, ...]
    offers: tuple[ToolFunction, ...] = ()
    hosted: tuple[ServerTool, ...] = ()
    programs: tuple[ToolFunction, ...] | None = None


def select_tools(
    request: CreateResponse,
    unavailable: str,
    providers: Mapping[str, Provider] = {},
    upstream: frozenset[str] = frozenset(),
) -> ToolSelection:
    """Split the request's tools. Common coding agents always name hosted tools, so that refusing
    them would lock those clients out: ``unavailable`` is ``ignore`` (leave them out of the prompt
    and report it) or ``refuse``. A choice that forces one is always refused. ``providers``: tool
    type → who brings it. ``upstream``: types of tools that the model's upstream runs itself, where
    nobody here does. Raises ``InvalidRequest``."""
    if not request.tools and not isinstance(request.tool_choice, tl.Choice):
        return ToolSelection((), ())
    check_callers(request.tools, request.tool_choice)
    # An upstream may have been trained to what clients run by their names.
    native = upstream & CLIENT_TOOLS.keys()
    providers = {name: each for name, each in providers.items() if name not in native}
    upstream = upstream - providers.keys()
    shown: tuple[tl.Tool, ...] = tuple(
        t
        for t in request.tools
        if isinstance(t, _SHOWN) or str(t.__struct_config__.tag) in upstream
    )
    if _PROGRAMS not in upstream:  # which then is told who may call what
        shown = by_the_model(shown)
    offers = _offers(by_the_model(request.tools))
    if offers:
        shown = (*search.shown(shown), *(offer.tool for offer in offers))
    types = [str(tool.__struct_config__.tag) for tool in request.tools]
    ignored = tuple(
        dict.fromkeys(
            name
            for tool, name in zip(request.tools, types, strict=True)
            if not isinstance(tool, (*_SHOWN, tl.ToolSearch))
            and name not in providers
            and name not in upstream
        )
    )
    hosted = []
    for at, (tool, name) in enumerate(zip(request.tools, types, strict=True)):
        if name in providers:
            path = f"tools[{at}]"
            providers[name].check(tool, path)
            hosted.append(ServerTool(name, tool, providers[name], path))
    if ignored and unavailable == "refuse":
        raise InvalidRequest(
            f"The tool '{ignored[0]}' is not available on this server.",
            param=f"tools[{types.index(ignored[0])}]",
            code="unsupported_tool",
        )
    choice = request.tool_choice
    known = {"function", "custom", "allowed_tools", *(each.type for each in hosted), *upstream}
    if isinstance(choice, tl.Choice) and choice.type not in known:
        raise InvalidRequest(
            f"The tool '{choice.type}' is not available on this server, so it cannot be chosen.",
            param="tool_choice",
            code="unsupported_tool",
        )
    programs = None
    if any(each.type == _PROGRAMS for each in hosted):
        programs = for_programs(request.tools)
    return ToolSelection(shown, ignored, offers, tuple(hosted), programs)


def _offers(tools: tuple[tl.Tool, ...]) -> tuple[ToolFunction, ...]:
    """Under names that no function of the client has."""
    taken = {tool.name for tool in tools if isinstance(tool, tl.Function | tl.Custom)}
    searches = [tool for tool in tools if isinstance(tool, tl.ToolSearch)]
    name = search.NAME
    while name in taken:
        name = f"{name}_"
    return tuple(search.offer(tool, search.deferred(tools), name) for tool in searches[:1])


def hidden_item_types(request: CreateResponse) -> tuple[type[ItemBase], ...]:
    """Kinds of items that the request does not want to be told of."""
    return (Reasoning,) if request.include_reasoning is False else ()


def options(request: CreateResponse, tools: tuple[tl.Tool, ...]) -> Options:
    """What the backend is asked."""
    return Options(
        tools=tools,
        tool_choice=request.tool_choice or "auto",
        parallel_tool_calls=_may_call_several(request),
        text=_format(request),
        guide=request.structured_outputs.guide if request.structured_outputs else None,
        reasoning=request.reasoning,
        max_output_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=request.seed,
        stop=request.stop or (),
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=request.logit_bias or {},
        logprobs=(request.top_logprobs or 0) if _LOGPROBS in (request.include or ()) else None,
        truncate=request.truncation == "auto",
        cache_key=request.prompt_cache_key,
        template=request.chat_template_kwargs or {},
        thinking_budget=request.thinking_token_budget,
        ignore_eos=bool(request.ignore_eos),
        stop_shown=bool(request.include_stop_str_in_output),
        priority=request.priority,
        cache_salt=request.cache_salt,
        trace=request.trace or {},
        extra={**_given(request, "mm_processor_kwargs"), **(request.vllm_xargs or {})},
    )


def _may_call_several(request: CreateResponse) -> bool:
    """A function that a request names is called exactly once, as OpenAI's guide to function calling
    says of ``tool_choice``."""
    choice = request.tool_choice
    is_named = isinstance(choice, tl.Choice) and choice.type in ("function", "custom")
    return request.parallel_tool_calls is not False and not is_named


def initial_response(
    request: CreateResponse,
    *,
    id: str,
    model: str,
    created_at: int,
    backend: Backend | None = None,
) -> Response:
    """The response before anything has happened: what was asked, with the defaults filled in.
    ``backend``: who answers a conversation."""
    return Response(
        id=id,
        created_at=created_at,
        model=model,
        instructions=request.instructions,
        previous_response_id=request.previous_response_id,
        tools=tuple(_public(tool) for tool in request.tools),
        tool_choice=request.tool_choice or "auto",
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        temperature=_or(request.temperature, _NEUTRAL["temperature"]),
        top_p=_or(request.top_p, _NEUTRAL["top_p"]),
        top_logprobs=request.top_logprobs or 0,
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        truncation=request.truncation or "disabled",
        text=_text(request),
        reasoning=_reasoning(request, backend),
        store=request.store is not False,
        background=bool(request.background),
        metadata=request.metadata or {},
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        **_given(
            request,
            "conversation",
            "context_management",
            "prompt",
            "user",
            "prompt_cache_options",
            "prompt_cache_retention",
        ),
    )


def _reasoning(request: CreateResponse, backend: Backend | None) -> ReasoningConfig:
    """``context`` is what is in force, where that is known (OpenAI's reference)."""
    asked = request.reasoning or ReasoningConfig()
    if asked.context is UNSET or backend is None:
        return asked
    return replace(asked, context=recall_of(backend, options(request, ())) or asked.context)


def _text(request: CreateResponse) -> TextConfig:
    return request.text or TextConfig(format=PlainFormat())


def _format(request: CreateResponse) -> TextConfig:
    """The format of the answer, wherever the request asks for it."""
    text, guides = _text(request), request.structured_outputs
    if guides is None:
        return text
    if not isinstance(text.format, PlainFormat):
        raise InvalidRequest(
            "Only one of 'text.format' and 'structured_outputs' can be set.",
            param="structured_outputs",
            code="invalid_value",
        )
    if guides.schema is None:
        return text
    return replace(text, format=JsonSchemaFormat(name="output", schema=guides.schema))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _given(request: CreateResponse, *names: str) -> Mapping[str, Any]:
    """Echo only what was given: null is not allowed in these."""
    return {name: value for name in names if (value := getattr(request, name)) is not None}


def _public(tool: tl.Tool) -> tl.Tool:
    """The tool without its secrets, which are never echoed nor stored."""
    if isinstance(tool, tl.Mcp):
        return replace(tool, authorization=UNSET, headers=UNSET)
    return tool
