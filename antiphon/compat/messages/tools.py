"""Translate tools of the Messages API, and changes of tools in the middle of a conversation.

Function tools are supported, and one of the tools that Anthropic's servers run: ``web_search``.
Anthropic's client tools without a schema, such as ``bash`` and ``text_editor``, are not supported,
because only Anthropic's models are trained to use them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from antiphon.compat.error_paths import ErrorPaths
from antiphon.errors import InvalidRequest
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import (
    invalid_type,
    invalid_value,
    json_type_name,
    missing_parameter,
)
from antiphon.wire.parsing.fields import read_array, read_object, read_tag
from antiphon.wire.parsing.json_body import BodyLimits
from antiphon.wire.request import Include

__all__ = ["INCLUDE", "TOOL_TYPES", "ToolCollector", "read_tool_choice"]

_WEB_SEARCH = ("web_search_20250305", "web_search_20260209", "web_search_20260318")
#: The types of tools that a request may declare.
TOOL_TYPES = ("custom", *_WEB_SEARCH)
#: Values of ``include`` that add the data for the result blocks of server tools to responses.
INCLUDE: tuple[Include, ...] = (
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
)
_MODES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}
_CHOICES = (*_MODES, "tool")


class ToolCollector:
    """Collects the tools that the model may use. They are the tools in ``tools`` without
    ``defer_loading``, and the tools that messages add.

    The tools are rendered at the start of the prompt, so a tool that a message adds or removes is
    added or removed for the whole conversation.
    """

    def __init__(self, paths: ErrorPaths, limits: BodyLimits) -> None:
        self._paths = paths
        self._limits = limits
        #: Name of a tool → the tool in the form of the Responses API, and its path in the request.
        self._declared: dict[str, tuple[JsonObject, str]] = {}
        self._offered: set[str] = set()
        #: Maximum number of web searches (``max_uses``). None means no maximum.
        self._max_uses: int | None = None

    def declare(self, raw: object, path: str) -> None:
        """Declare all tools in the field ``tools`` of the request. Raises ``InvalidRequest``."""
        for index, tool in enumerate(read_array(raw, path, self._limits.tools)):
            self.define(tool, f"{path}[{index}]")

    def define(self, raw: object, path: str) -> None:
        """Declare one tool. If the tool does not set ``defer_loading``, the model may use it
        immediately. Raises ``InvalidRequest``."""
        fields = read_object(raw, path)
        kind = read_tag({"type": "custom", **fields}, path, TOOL_TYPES)
        if "name" not in fields:
            raise missing_parameter(f"{path}.name")
        name = fields["name"]
        if not isinstance(name, str):
            raise invalid_type(f"{path}.name", "a string", json_type_name(name))
        if name in self._declared:
            raise invalid_value(f"{path}.name", name)
        _check_callers(fields.get("allowed_callers", []), f"{path}.allowed_callers")
        tool = _function(fields, path) if kind == "custom" else _web_search(fields, path)
        self._declared[name] = (tool, path)
        if kind in _WEB_SEARCH:
            self._max_uses = fields.get("max_uses")
        if fields.get("defer_loading") is not True:
            self._offered.add(name)

    def add(self, name: object, path: str) -> None:
        """Let the model use a declared tool. Raises ``InvalidRequest`` for an unknown name."""
        self._offered.add(self._known(name, path))

    def remove(self, name: object, path: str) -> None:
        """Hide a declared tool from the model. Raises ``InvalidRequest`` for an unknown name."""
        self._offered.discard(self._known(name, path))

    def _known(self, name: object, path: str) -> str:
        if not isinstance(name, str):
            raise invalid_type(path, "a string", json_type_name(name))
        if name not in self._declared:
            raise InvalidRequest(
                f"Invalid '{path}': there is no tool '{name[:128]}' in 'tools'.",
                param=path,
                code="invalid_value",
            )
        return name

    def fields(self) -> JsonObject:
        """Return the fields of the Responses request for the tools that the model may use."""
        tools: list[JsonObject] = []
        for name, (tool, path) in self._declared.items():
            if name in self._offered:
                at = f"tools[{len(tools)}]"
                self._paths.add(at, path)
                self._paths.add(f"{at}.parameters", f"{path}.input_schema")
                self._paths.add(f"{at}.filters", path)
                tools.append(tool)
        if not tools:
            return {}
        fields: JsonObject = {"tools": tools}
        if any(tool["type"] != "function" for tool in tools):
            fields["include"] = list(INCLUDE)
            if self._max_uses is not None:
                fields["max_tool_calls"] = self._max_uses
        return fields

    @property
    def has_hidden(self) -> bool:
        """Whether some declared tools are hidden from the model, so that a later message may add
        them."""
        return self._declared.keys() != self._offered

    def is_web_search(self, name: str) -> bool:
        """Return whether the tool that the request declares under this name is a web search."""
        return name in self._declared and self._declared[name][0]["type"] == "web_search"


def _check_callers(raw: object, path: str) -> None:
    for index, caller in enumerate(raw if isinstance(raw, list) else [raw]):
        if caller != "direct":
            raise invalid_value(f"{path}[{index}]", str(caller), ("direct",))


def _function(fields: JsonObject, path: str) -> JsonObject:
    if "input_schema" not in fields:
        raise missing_parameter(f"{path}.input_schema")
    tool: JsonObject = {
        "type": "function",
        "name": fields["name"],
        "parameters": fields["input_schema"],
    }
    tool |= {name: fields[name] for name in ("description", "strict") if name in fields}
    if "input_examples" in fields:
        examples = fields["input_examples"]
        if not isinstance(examples, list):
            raise invalid_type(f"{path}.input_examples", "an array", json_type_name(examples))
        lines = [json.dumps(example, ensure_ascii=False) for example in examples]
        known = [tool["description"]] if isinstance(tool.get("description"), str) else []
        tool["description"] = "\n".join([*known, "", "Examples of its input:", *lines])
    return tool


def _web_search(fields: JsonObject, path: str) -> JsonObject:
    tool: JsonObject = {"type": "web_search"}
    domains = {
        name: fields[name] for name in ("allowed_domains", "blocked_domains") if fields.get(name)
    }
    if domains:
        tool["filters"] = domains
    if "user_location" in fields:
        tool["user_location"] = read_object(fields["user_location"], f"{path}.user_location")
    return tool


def read_tool_choice(raw: object, path: str, tools: ToolCollector) -> JsonObject:
    """Translate ``tool_choice`` to fields of the Responses request. Raises ``InvalidRequest``."""
    fields = read_object(raw, path)
    kind = read_tag(fields, path, _CHOICES)
    name = fields.get("name")
    choice: Any = _MODES.get(kind)
    if kind == "tool":
        if name is None:
            raise missing_parameter(f"{path}.name")
        if not isinstance(name, str):
            raise invalid_type(f"{path}.name", "a string", json_type_name(name))
        named = {"type": "function", "name": name}
        choice = {"type": "web_search"} if tools.is_web_search(name) else named
    single = fields.get("disable_parallel_tool_use", False)
    if not isinstance(single, bool):
        where = f"{path}.disable_parallel_tool_use"
        raise invalid_type(where, "a boolean", json_type_name(single))
    return {"tool_choice": choice, **({"parallel_tool_calls": False} if single else {})}
