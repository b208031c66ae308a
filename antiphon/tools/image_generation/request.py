"""Read and check the fields of an ``image_generation`` tool in a request."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import UNSET

from antiphon.errors import InvalidRequest, invalid_field
from antiphon.wire.parsing.errors import (
    invalid_type,
    invalid_value,
    json_type_name,
    out_of_range,
    unknown_parameter,
)
from antiphon.wire.tools import ImageGeneration

from .base import MIME_TYPES, ImageRequest

_QUALITIES = ("low", "medium", "high", "xhigh", "max", "auto")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
#: Field → its allowed values (as in OpenAI's types).
_VALUES: Mapping[str, tuple[str, ...]] = {
    "action": ("generate", "edit", "auto"),
    "background": ("transparent", "opaque", "auto"),
    "complexity": ("low", "medium", "high"),
    "input_fidelity": ("high", "low"),
    "moderation": ("auto", "low"),
    "output_format": tuple(MIME_TYPES),
    "quality": _QUALITIES,
}
#: Field → its minimum and maximum value.
_RANGES: Mapping[str, tuple[int, int]] = {"frame_count": (2, 16), "frame_duration_ms": (1, 655_350)}
_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
#: Field → the only output format that supports the field.
_REQUIRED_FORMAT: Mapping[str, str] = {
    "frame_count": "gif",
    "frame_duration_ms": "gif",
    "svg": "svg",
}
_MASK_FIELDS = ("image_url", "file_id")


def parse_image_request(
    tool: ImageGeneration, path: str, *, models: Mapping[str, str], max_pixels: int
) -> ImageRequest:
    """Return the options that a request sets for the tool.

    ``models``: model name in requests → the name that the generator uses. ``max_pixels``: maximum
    number of pixels. Raises ``InvalidRequest``.
    """
    values = {
        name: value
        for name in ImageRequest.__struct_fields__
        if (value := getattr(tool, name)) is not UNSET
    }
    _check_values(tool, path)
    if (model := values.get("model")) is not None:
        if model not in models:
            raise invalid_value(f"{path}.model", model, sorted(models))
        values["model"] = models[model]
    if "size" in values:
        values["size"] = _parse_size(values["size"], f"{path}.size", max_pixels)
    if "svg" in values:
        _check_svg(values["svg"], f"{path}.svg")
    request = ImageRequest(**{name: value for name, value in values.items() if value != "auto"})
    _check_combinations(request, path)
    return request


def requested_action(tool: ImageGeneration) -> str:
    """Return the action that the request asks for: ``generate``, ``edit`` or ``auto`` (the model
    decides). If the request has a mask, the action is ``edit``."""
    action = "auto" if tool.action is UNSET else tool.action
    return "edit" if tool.input_image_mask is not UNSET else action


def check_mask(tool: ImageGeneration, path: str) -> None:
    """Raise ``InvalidRequest`` if the tool's mask has invalid fields or cannot be combined with
    other fields."""
    mask = tool.input_image_mask
    if mask is UNSET:
        return
    where = f"{path}.input_image_mask"
    if tool.action == "generate":
        raise unfit_field(where, "a mask needs an image to edit, and 'action' is 'generate'")
    if tool.output_format == "gif":
        raise unfit_field(where, "output_format 'gif' does not support masks")
    for name, value in mask.items():
        if name not in _MASK_FIELDS:
            raise unknown_parameter(f"{where}.{name[:64]}")
        if value is not None and not isinstance(value, str):
            raise invalid_type(f"{where}.{name}", "a string", json_type_name(value))
    if sum(bool(mask.get(name)) for name in _MASK_FIELDS) != 1:
        raise unfit_field(where, "it must have either an image_url or a file_id")


def unfit_field(path: str, reason: str) -> InvalidRequest:
    """Return the error for a value that is never supported here, or that does not fit the other
    fields of the tool. ``reason``: the end of the error message."""
    return invalid_field(path, f"{reason}.", code="unsupported_value")


def _check_values(tool: ImageGeneration, path: str) -> None:
    for name, allowed in _VALUES.items():
        value = getattr(tool, name)
        if value is not UNSET and value not in allowed:
            raise invalid_value(f"{path}.{name}", str(value), allowed)
    for name, (minimum, maximum) in _RANGES.items():
        value = getattr(tool, name)
        if value is not UNSET and not minimum <= value <= maximum:
            sign, bound = (">=", minimum) if value < minimum else ("<=", maximum)
            raise out_of_range(f"{path}.{name}", "integer", value, sign, str(bound))


def _parse_size(text: str, path: str, max_pixels: int) -> tuple[int, int] | str:
    if text == "auto":
        return text
    match = _SIZE.fullmatch(text)
    if match is None:
        raise invalid_value(path, text, ("auto", "WIDTHxHEIGHT"))
    width, height = int(match[1]), int(match[2])
    if width * height > max_pixels:
        raise unfit_field(path, f"images may have at most {max_pixels} pixels")
    return width, height


def _check_svg(svg: object, path: str) -> None:
    if not isinstance(svg, dict):
        raise invalid_type(path, "an object", json_type_name(svg))
    for name in svg:
        if name not in ("model", "reasoning"):
            raise invalid_value(path, name, ("model", "reasoning"))
    reasoning = svg.get("reasoning") or {}
    if not isinstance(reasoning, dict):
        raise invalid_type(f"{path}.reasoning", "an object", json_type_name(reasoning))
    effort = reasoning.get("effort")
    if effort is not None and effort not in _EFFORTS:
        raise invalid_value(f"{path}.reasoning.effort", str(effort), _EFFORTS)


def _check_combinations(request: ImageRequest, path: str) -> None:
    """Raise ``InvalidRequest`` if options cannot be combined. The rules are those of OpenAI's
    API."""
    output_format = request.output_format
    for name, required_format in _REQUIRED_FORMAT.items():
        if getattr(request, name) is not None and output_format != required_format:
            raise unfit_field(f"{path}.{name}", f"it needs output_format '{required_format}'")
    if request.background == "transparent" and output_format not in ("png", "webp"):
        raise unfit_field(f"{path}.background", f"'{output_format}' cannot be transparent")
    if request.output_compression not in (None, 100) and output_format not in ("jpeg", "webp"):
        raise unfit_field(
            f"{path}.output_compression", f"'{output_format}' has no compression level"
        )
    if request.partial_images and output_format in ("gif", "svg"):
        raise unfit_field(
            f"{path}.partial_images", f"output_format '{output_format}' has no previews"
        )
