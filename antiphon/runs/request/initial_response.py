"""The response before anything is generated. Its fields come from the request; missing fields have
default values."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.backends.base import Backend
from antiphon.wire import tools as tl
from antiphon.wire.json_types import JsonObject
from antiphon.wire.request import CreateResponse
from antiphon.wire.request_options import PromptCacheRequest
from antiphon.wire.request_shapes import derive
from antiphon.wire.response import (
    ReasoningConfig,
    Response,
)

from .options import DEFAULT_SAMPLING, build_options, explicit_fields, text_config

#: The cache options of a request that sets none.
_DEFAULT_CACHE = PromptCacheRequest()


def initial_response(
    request: CreateResponse,
    *,
    id: str,
    model: str,
    created_at: int,
    backend: Backend | None = None,
) -> Response:
    """Build the response as it is before anything is generated. Its fields come from the request;
    missing fields have default values. ``backend``: the backend that answers a conversation. It is
    None if the model only continues raw text."""
    own = explicit_fields(request, "conversation", "user")
    return replace(
        derive(request, _shared_fields),
        id=id,
        created_at=created_at,
        model=model,
        previous_response_id=request.previous_response_id,
        background=bool(request.background),  # the shape has another value for a warm-up
        reasoning=_reasoning(request, backend),
        metadata=request.metadata or {},
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        prompt_cache_options=(request.prompt_cache_options or _DEFAULT_CACHE).effective,
        **own,
    )


def _shared_fields(request: CreateResponse) -> Response:
    """Return a response with only those fields that depend on the shape of the request. The
    responses to all requests of one shape have these values."""
    tools = request.tools
    return Response(
        id="",
        created_at=0,
        model="",
        instructions=request.instructions,
        tools=tools if isinstance(tools, tl.SharedTools) else tuple(map(_public, tools)),
        tool_choice=request.tool_choice or "auto",
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        temperature=_or(request.temperature, DEFAULT_SAMPLING["temperature"]),
        top_p=_or(request.top_p, DEFAULT_SAMPLING["top_p"]),
        top_logprobs=request.top_logprobs or 0,
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        truncation=request.truncation or "disabled",
        text=text_config(request),
        store=request.store is not False,
        ignored_fields=request.ignored_fields or UNSET,
        **explicit_fields(
            request,
            "context_management",
            "prompt",
            "prompt_cache_retention",
        ),
    )


def _reasoning(request: CreateResponse, backend: Backend | None) -> ReasoningConfig:
    """Return the ``reasoning`` field of the response. If the request sets ``reasoning.context``,
    the backend may use a different value. As in OpenAI's API reference, the response then contains
    the value that the backend uses. If the backend does not know which value it uses, the response
    contains the value of the request."""
    config = request.reasoning or ReasoningConfig()
    if config.context is UNSET or backend is None:
        return config
    retention = backend.capabilities.reasoning_retention
    if retention is None:
        return config
    return replace(config, context=retention(build_options(request)))


def _public(tool: tl.Tool) -> tl.Tool:
    """Return the tool without its secrets, because secrets are neither echoed nor stored."""
    if isinstance(tool, tl.Mcp):
        return replace(tool, authorization=UNSET, headers=UNSET)
    if isinstance(tool, tl.CodeInterpreter) and not isinstance(tool.container, str):
        return replace(tool, container=_without_secrets(tool.container))
    if isinstance(tool, tl.Shell) and tool.environment:
        return replace(tool, environment=_without_secrets(tool.environment))
    return tool


def _without_secrets(container: JsonObject) -> JsonObject:
    """Return the settings of a container without the secrets for its allowed domains."""
    policy = container.get("network_policy")
    if not isinstance(policy, dict) or "domain_secrets" not in policy:
        return container
    public = {name: value for name, value in policy.items() if name != "domain_secrets"}
    return {**container, "network_policy": public}


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
