"""Parse the format of an answer (``text.format``)."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.wire.text_formats import JsonSchemaFormat, TextFormatConfig

from .errors import missing_parameter
from .fields import classes_by_tag, convert, read_object, read_tag
from .tools import check_name

_FORMATS: Mapping[str, type[TextFormatConfig]] = classes_by_tag(TextFormatConfig.__args__)
#: The formats to which an item of a conversation can change.
UPDATE_FORMATS = ("text", "json_schema")
_NAME_LENGTH = 64


def read_format(
    raw: object, path: str, allowed: tuple[str, ...] = tuple(_FORMATS)
) -> TextFormatConfig:
    """Read a format. ``allowed``: the types that it can have. Raises ``InvalidRequest``."""
    fields = read_object(raw, path)
    cls = _FORMATS[read_tag(fields, path, allowed)]
    if cls is JsonSchemaFormat and "name" not in fields and "json_schema" in fields:
        raise missing_parameter(
            f"{path}.name",
            " This looks like a format of the Chat Completions API; here its fields are next to "
            "'type'.",
        )
    form = convert(fields, cls, path)
    if isinstance(form, JsonSchemaFormat):
        check_name(form.name, f"{path}.name", _NAME_LENGTH)
    return form
