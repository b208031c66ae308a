"""Read and check the fields of a ``web_search`` tool in a request."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import UNSET

from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import (
    invalid_type,
    invalid_value,
    json_type_name,
    pattern_mismatch,
    too_long_error,
)
from antiphon.wire.parsing.fields import known_fields, read_array, read_object
from antiphon.wire.tools import AnyWebSearch, WebFetch

from .browser import SearchOptions

#: ``search_context_size`` → the number of results of a search, and the maximum number of characters
#: of a page that one call shows.
_SIZES: Mapping[str, tuple[int, int]] = {"low": (5, 2000), "medium": (10, 4000), "high": (20, 8000)}
#: Characters of a page that ``web_fetch`` shows by default, and characters per token.
_FETCH_CHARS, _TOKEN_CHARS = 16_000, 4
_MAX_DOMAINS = 100
#: A host name without scheme and path.
_DOMAIN = re.compile(r"[^\s/:?#@\[\]]{1,253}")
_COUNTRY = re.compile(r"[A-Za-z]{2}")
_LOCATION_FIELDS = ("city", "region", "country", "timezone")
_MAX_LOCATION_LENGTH = 128
#: The content types that a request may name. Only text is searched.
_CONTENT_TYPES = ("text", "image")


def check_tool(tool: AnyWebSearch, path: str) -> None:
    """Raise ``InvalidRequest`` if a field of the tool is invalid or not supported. The error
    contains the path of the field."""
    filters = known_fields(
        _filters(tool), ("allowed_domains", "blocked_domains"), f"{path}.filters"
    )
    for name, domains in filters.items():
        _check_domains(domains, f"{path}.filters.{name}")
    location = known_fields(_location(tool), ("type", *_LOCATION_FIELDS), f"{path}.user_location")
    for name, value in location.items():
        _check_location(name, value, f"{path}.user_location.{name}")
    kinds = () if tool.search_content_types is UNSET else tool.search_content_types
    for at, kind in enumerate(kinds):
        # Codex always requests both types, but it accepts results that are only text.
        if kind not in _CONTENT_TYPES or "text" not in kinds:
            raise invalid_value(f"{path}.search_content_types[{at}]", kind, _CONTENT_TYPES[:1])


def _check_domains(domains: object, path: str) -> None:
    for at, one in enumerate(read_array(domains, path, _MAX_DOMAINS)):
        if not isinstance(one, str):
            raise invalid_type(f"{path}[{at}]", "a string", json_type_name(one))
        if not _DOMAIN.fullmatch(one):
            raise pattern_mismatch(f"{path}[{at}]", _DOMAIN.pattern)


def _check_location(name: str, value: object, path: str) -> None:
    if not isinstance(value, str):
        raise invalid_type(path, "a string", json_type_name(value))
    if len(value) > _MAX_LOCATION_LENGTH:
        raise too_long_error(path, len(value), _MAX_LOCATION_LENGTH)
    if name == "type" and value != "approximate":
        raise invalid_value(path, value, ("approximate",))
    if name == "country" and not _COUNTRY.fullmatch(value):
        raise pattern_mismatch(path, _COUNTRY.pattern)


def search_options(tool: AnyWebSearch) -> SearchOptions:
    """Return the search options that the request sets for the tool."""
    size = "medium" if tool.search_context_size is UNSET else tool.search_context_size
    count, max_view_chars = _SIZES[size]
    if tool.max_content_tokens is not UNSET:
        max_view_chars = tool.max_content_tokens * _TOKEN_CHARS
    elif isinstance(tool, WebFetch):
        max_view_chars = _FETCH_CHARS
    filters = _filters(tool)
    return SearchOptions(
        count=count,
        max_view_chars=max_view_chars,
        allowed_domains=tuple(filters.get("allowed_domains", ())),
        blocked_domains=tuple(filters.get("blocked_domains", ())),
        location=_location(tool),
    )


def describe_location(tool: AnyWebSearch) -> str:
    """Return the user's location as text. The text is empty if the request contains no location."""
    location = _location(tool)
    return ", ".join(
        " ".join(location[name].split()) for name in _LOCATION_FIELDS if location.get(name)
    )


def _filters(tool: AnyWebSearch) -> JsonObject:
    return read_object({} if tool.filters is UNSET else tool.filters, "filters")


def _location(tool: AnyWebSearch) -> JsonObject:
    return read_object({} if tool.user_location is UNSET else tool.user_location, "user_location")
