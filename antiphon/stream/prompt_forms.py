"""How prompts show calls and results of calls to the model, as columns of ``KINDS``.

The model sees each call as a call of a function, whatever the type of its item. The dialects write
the call and its result in the syntax of the model family.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET, Struct, to_builtins

from antiphon.wire.items import ItemBase


class CallForm(Struct, frozen=True, kw_only=True):
    """How a prompt shows an item as the call of a function.

    - ``name``: the name of the function. If it is empty, the field ``name`` of the item names it.
    - ``arguments``: the field that contains all arguments, as an object or as JSON text.
    - ``input``: the field with a text that is the only argument. It is shown as the argument
      ``input``.
    - ``fields``: the names of arguments, each with the field of the item that contains it. Absent
      fields are left out.
    """

    name: str = ""
    arguments: str = ""
    input: str = ""
    fields: Mapping[str, str] = {}

    def function_name(self, item: Any) -> str:
        """Return the name of the function that the item calls, without its namespace."""
        return self.name or str(item.name)

    def read(self, item: Any) -> tuple[str, Any]:
        """Return the name of the called function, without its namespace, and its arguments, as an
        object or as the JSON text that the model wrote."""
        name = self.function_name(item)
        if self.arguments:
            value = getattr(item, self.arguments)
            return name, {} if value is UNSET else value
        if self.input:
            return name, {"input": getattr(item, self.input) or ""}
        present = present_fields(item, *self.fields.values())
        return name, {
            argument: present[field] for argument, field in self.fields.items() if field in present
        }


class ResultForm(Struct, frozen=True, kw_only=True):
    """How a prompt shows the result that an item contains. One of the three is set.

    - ``field``: the field with the result: a text, parts (if it is the kind's ``parts_field``),
      definitions of tools (if the kind ``declares_tools``), or any other JSON value.
    - ``fields``: the fields that are shown as one JSON object. Absent fields are left out.
    - ``text``: function that computes the text of the result from the item.
    """

    field: str = ""
    fields: tuple[str, ...] = ()
    text: Callable[[Any], str] | None = None


def present_fields(item: ItemBase, *fields: str) -> dict[str, Any]:
    """Return those of the named fields of an item that have a value, as JSON values."""
    values = {field: getattr(item, field) for field in fields}
    present = {f: value for f, value in values.items() if value is not None and value is not UNSET}
    read: dict[str, Any] = to_builtins(present)
    return read


def dump_text(value: object) -> str:
    """Return a text unchanged, and any other JSON value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
