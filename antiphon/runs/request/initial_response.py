"""The response as it stands before anything is generated: the request's fields, with defaults."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.backends.base import Backend
from antiphon.wire import tools as tl
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import (
    ReasoningConfig,
    Response,
)

from .options import DEFAULT_SAMPLING, build_options, given_fields, text_config

__all__ = ["initial_response"]


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
        temperature=_or(request.temperature, DEFAULT_SAMPLING["temperature"]),
        top_p=_or(request.top_p, DEFAULT_SAMPLING["top_p"]),
        top_logprobs=request.top_logprobs or 0,
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        truncation=request.truncation or "disabled",
        text=text_config(request),
        reasoning=_reasoning(request, backend),
        store=request.store is not False,
        background=bool(request.background),
        metadata=request.metadata or {},
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        **given_fields(
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
    retention = backend.capabilities.reasoning_retention
    if retention is None:
        return asked
    return replace(asked, context=retention(build_options(request)))


def _public(tool: tl.Tool) -> tl.Tool:
    """The tool without its secrets, which are never echoed nor stored."""
    if isinstance(tool, tl.Mcp):
        return replace(tool, authorization=UNSET, headers=UNSET)
    return tool


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
