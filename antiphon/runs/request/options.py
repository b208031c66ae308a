"""The options for the backend, built from the request and from the defaults of its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Options
from antiphon.inference.sampling import Session
from antiphon.wire.items import ItemBase, Reasoning
from antiphon.wire.request import CreateResponse
from antiphon.wire.request_shapes import RequestShape, derive, shape_of
from antiphon.wire.response import (
    JsonSchemaFormat,
    PlainFormat,
    TextConfig,
)

_LOGPROBS = "message.output_text.logprobs"
#: OpenAI's defaults, for fields that neither the request nor the model sets.
DEFAULT_SAMPLING: Mapping[str, Any] = {"temperature": 1.0, "top_p": 1.0}


def apply_defaults(
    request: CreateResponse, defaults: Mapping[str, object], budgets: Mapping[str, int] = {}
) -> CreateResponse:
    """Return the request with default values in the fields that the client has not set. The values
    come from ``defaults``, the model's defaults, or else from ``DEFAULT_SAMPLING``. So the response
    shows the values that are actually used. ``budgets``: reasoning effort → maximum number of
    reasoning tokens."""
    return replace(request, **derive(request, _missing_fields, defaults, budgets))


def _missing_fields(
    request: CreateResponse, defaults: Mapping[str, object], budgets: Mapping[str, int]
) -> dict[str, Any]:
    """Return the fields that have default values."""
    effort = request.reasoning.effort if request.reasoning is not None else None
    if effort is not None and effort in budgets:
        defaults = {**defaults, "thinking_token_budget": budgets[effort]}
    missing: dict[str, Any] = {
        name: value
        for name, value in {**DEFAULT_SAMPLING, **defaults}.items()
        if getattr(request, name) is None
    }
    return _with_shape(request, missing)


def with_instructions(request: CreateResponse, instructions: str) -> CreateResponse:
    """Return the request with the instructions of its model."""
    return replace(request, **derive(request, _instructions, instructions))


def _instructions(request: CreateResponse, instructions: str) -> dict[str, Any]:
    return _with_shape(request, {"instructions": instructions})


def _with_shape(request: CreateResponse, fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields that will replace those of a request. If the shape of the request is kept, its
    shape with these fields is one of them."""
    if shape_of(request) is not None:
        fields["shape"] = RequestShape(replace(request, **fields))
    return fields


def hidden_item_types(request: CreateResponse) -> tuple[type[ItemBase], ...]:
    """Return the item types that the request excludes from the output."""
    return (Reasoning,) if request.include_reasoning is False else ()


def build_options(
    request: CreateResponse,
    cache_scope: str | None = None,
    *,
    tenant: str = "",
    session: Session | None = None,
) -> Options:
    """Build the backend's options from a tenant's request, without the tools. ``cache_scope``: the
    scope in which the prompt is cached; None if tenants share their caches. ``session``: the
    conversation of the request, by which a router chooses an engine. Raises
    ``InvalidRequest``."""
    return replace(
        derive(request, _shared_options),
        cache_key=request.prompt_cache_key,
        cache_scope=cache_scope,
        tenant=tenant,
        session=session,
        trace=request.trace or {},
        shape=shape_of(request),
    )


def _shared_options(request: CreateResponse) -> Options:
    """Return the options that requests of the same shape have in common."""
    return Options(
        parallel_tool_calls=request.parallel_tool_calls is not False,
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
        template=request.chat_template_kwargs or {},
        thinking_budget=request.thinking_token_budget,
        ignore_eos=bool(request.ignore_eos),
        include_stop_text=bool(request.include_stop_str_in_output),
        logprob_token_ids=bool(request.return_tokens_as_token_ids),
        priority=request.priority,
        cache_salt=request.cache_salt,
        hints=request.hints,
        extra={**explicit_fields(request, "mm_processor_kwargs"), **(request.vllm_xargs or {})},
    )


def _format(request: CreateResponse) -> TextConfig:
    """Return the format of the answer, from ``text.format`` or ``structured_outputs``. Raises
    ``InvalidRequest`` if both are set.
    """
    text, guides = text_config(request), request.structured_outputs
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


def text_config(request: CreateResponse) -> TextConfig:
    """Return the request's ``text`` field. The default is plain text."""
    return request.text or TextConfig(format=PlainFormat())


def explicit_fields(request: CreateResponse, *names: str) -> Mapping[str, Any]:
    """Return the fields in ``names`` that the request sets, with their values. Fields that the
    request does not set are left out, because the response must not contain them with the value
    null."""
    return {name: value for name in names if (value := getattr(request, name)) is not None}
