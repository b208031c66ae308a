"""What must hold of a request as a whole: bounds, labels, fields that exclude or need each other.

The bounds are OpenAI's, except that ``max_output_tokens`` may be 1: real clients warm up with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from antiphon.errors import InvalidRequest

from . import items as it
from .faults import bad_value, missing, out_of_range, too_long, too_many
from .request import INCLUDES, CreateResponse, InputTokens
from .toolbox import check_choice
from .tools import Tool

__all__ = ["check", "check_tokens"]

_RANGES: Mapping[str, tuple[float | None, float | None]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "top_logprobs": (0, 20),
    "top_k": (-1, None),
    "max_output_tokens": (1, None),
    "max_tool_calls": (1, None),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0, None),
    "seed": (-(2**63), 2**63 - 1),
}
_LENGTHS: Mapping[str, int] = {"prompt_cache_key": 64, "safety_identifier": 128, "model": 256}
_STOPS = 16
_TIERS = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")


def check(request: CreateResponse) -> None:
    """Raises ``InvalidRequest`` for the first thing that does not hold."""
    for name, (low, high) in _RANGES.items():
        value = getattr(request, name)
        if value is not None and (
            (low is not None and value < low) or (high is not None and value > high)
        ):
            raise out_of_range(name, value, low, high)
    for name, limit in _LENGTHS.items():
        text = getattr(request, name)
        if text is not None and len(text) > limit:
            raise too_long(name, len(text), limit)
    if request.metadata:
        _check_metadata(request.metadata)
    _check_lists(request)
    _check_context(request)
    check_choice(request.tool_choice, _all_tools(request.tools, request.input or ()))


def check_tokens(request: InputTokens) -> None:
    """The same for a token count."""
    check(request.as_create())


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > 16:
        raise InvalidRequest(
            "Invalid 'metadata': too many properties. Expected an object with at most 16 "
            f"properties, but got an object with {len(metadata)} properties instead.",
            param="metadata",
            code="object_above_max_properties",
        )
    for name, value in metadata.items():
        if len(name) > 64:
            raise too_long("metadata", len(name), 64)
        if len(value) > 512:
            raise too_long(f"metadata.{name}", len(value), 512)


def _check_lists(request: CreateResponse) -> None:
    for index, value in enumerate(request.include or ()):
        if value not in INCLUDES:
            raise bad_value(f"include[{index}]", value, INCLUDES)
    if request.stop is not None and len(request.stop) > _STOPS:
        raise too_many("stop", len(request.stop), _STOPS)
    if request.service_tier is not None and request.service_tier not in _TIERS:
        raise bad_value("service_tier", request.service_tier, _TIERS)
    for token, bias in (request.logit_bias or {}).items():
        if not -100 <= bias <= 100:
            raise out_of_range(f"logit_bias.{token}", bias, -100, 100)


def _check_context(request: CreateResponse) -> None:
    sources = (request.previous_response_id, request.conversation, request.prompt)
    if request.input is None and not any(source is not None for source in sources):
        raise missing("input")
    if request.previous_response_id is not None and request.conversation is not None:
        raise InvalidRequest(
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Only one of "
            "them can be set.",
            param="conversation",
            code="mutually_exclusive_parameters",
        )
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )


def _all_tools(tools: tuple[Tool, ...], items: Iterable[it.Item]) -> Iterator[Tool]:
    """Those of the request and those its input adds on the way."""
    yield from tools
    for item in items:
        if isinstance(item, it.AdditionalTools | it.ToolSearchOutput):
            yield from item.tools
