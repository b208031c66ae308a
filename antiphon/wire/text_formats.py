"""Reasoning efforts, and the formats of an answer."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from antiphon.wire.json_types import JsonObject

__all__ = ["Effort", "JsonObjectFormat", "JsonSchemaFormat", "PlainFormat", "TextFormatConfig"]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class PlainFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="json_object"):
    pass


class JsonSchemaFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """Output that is JSON and conforms to ``schema``."""

    name: str
    schema: JsonObject
    description: str | None = None
    strict: bool = False


TextFormatConfig = PlainFormat | JsonObjectFormat | JsonSchemaFormat
