"""Which calls a request allows, for models that nothing holds to it: that one comes where one must,
of a tool that may be called, with arguments that obey a strict schema or a grammar.

It knows no engine and no wire.
"""

from __future__ import annotations

import json

from antiphon.dialects.constraints import input_lark
from antiphon.dialects.schemas import check_schema, strict_form
from antiphon.dialects.tools import Shown, ShownTool
from antiphon.wire.items import CustomToolCall, FunctionCall

from .form import Form

__all__ = ["Calls", "calls_of"]

_Name = tuple[str, str | None]


class Calls:
    """Judges the calls of one reply. ``required``: there must be one."""

    def __init__(self, shown: Shown) -> None:
        self.required = shown.required
        self._forms = {_name(tool): _form(tool) for tool in shown.callable}
        self._kept_out = {_name(tool) for tool in shown.tools} - self._forms.keys()

    def fault(self, call: FunctionCall | CustomToolCall, text: str) -> str | None:
        """What is wrong with a call that has this input, in words for who made it."""
        name = (call.name, call.namespace or None)
        if name in self._kept_out or (self.required and name not in self._forms):
            return f"'{call.name}' may not be called now."
        form = self._forms.get(name)
        if form is None or form.obeys(text):
            return None
        return f"that is not the form that '{call.name}' takes."


def calls_of(shown: Shown) -> Calls | None:
    """None where any call is right, and none too. Raises ``InvalidRequest`` for schemas and
    grammars that cannot be judged by."""
    asked = any(tool.strict or tool.grammar for tool in shown.callable)
    return Calls(shown) if asked or shown.required or shown.restricted else None


def _name(tool: ShownTool) -> _Name:
    return tool.shape.wire_name, tool.shape.namespace


def _form(tool: ShownTool) -> Form | None:
    if tool.grammar is not None:
        return Form(input_lark(tool), is_json=False)
    if not tool.strict:
        return None
    schema = json.dumps({"type": "object", **strict_form(tool.schema)})
    check_schema(schema, tool.path)
    return Form(f"start: %json {schema}", is_json=True)
