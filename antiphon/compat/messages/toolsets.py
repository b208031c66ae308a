"""Anthropic's toolsets for computers and browsers: one entry in ``tools`` that declares many tools,
which the client runs.

A toolset becomes a namespace of functions, because tools of two toolsets may have the same name.
The names and inputs follow the types of the ``anthropic`` SDK 2.14.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.errors import invalid_field
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import invalid_value
from antiphon.wire.parsing.fields import read_objects, read_tag

from .bodies import ToolConfig

#: Name of a tool → its description, the types of its required inputs, and those of the others.
_Members = Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]]

_TEXT, _WHOLE, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_TEXTS = {"type": "array", "items": _TEXT}
_POINT = {"type": "array", "items": _WHOLE, "minItems": 2, "maxItems": 2}
_AREA = {"region": {"type": "array", "items": _WHOLE, "minItems": 4, "maxItems": 4}}
_DIRECTION = {"scroll_direction": {"type": "string", "enum": ["up", "down", "left", "right"]}}
_CLICKS = {
    "left_click": "Click the left mouse button",
    "right_click": "Click the right mouse button",
    "middle_click": "Click the middle mouse button",
    "double_click": "Double-click the left mouse button",
    "triple_click": "Triple-click the left mouse button",
}
_KEYS = "a key or a chord, such as Return or ctrl+s"
_KEYED = {"text": _TEXT}
_DURATION = {"duration": _NUMBER}

_AT = {"coordinate": _POINT}
_COMPUTER: _Members = {
    "key": (f"Press {_KEYS}.", _KEYED, {"repeat": _WHOLE}),
    "hold_key": (f"Hold {_KEYS} for some seconds.", {**_KEYED, "duration": _WHOLE}, {}),
    "type": ("Type a text.", _KEYED, {}),
    "cursor_position": ("Return the position of the cursor.", {}, {}),
    "mouse_move": ("Move the cursor to a point (x, y) in pixels.", _AT, {}),
    "left_mouse_down": ("Press the left mouse button.", {}, {}),
    "left_mouse_up": ("Release the left mouse button.", {}, {}),
    **{
        name: (f"{what} at a point (x, y), holding the keys `text`, if any.", {}, {**_AT, **_KEYED})
        for name, what in _CLICKS.items()
    },
    "left_click_drag": (
        "Drag from `start_coordinate` to `coordinate`.",
        {**_AT, "start_coordinate": _POINT},
        _KEYED,
    ),
    "scroll": (
        "Scroll at a point (x, y) by some clicks of the wheel.",
        {**_DIRECTION, "scroll_amount": _WHOLE},
        {**_AT, **_KEYED},
    ),
    "wait": ("Wait for some seconds.", {"duration": _WHOLE}, {}),
    "screenshot": ("Take a screenshot.", {}, {}),
    "zoom": ("Take a screenshot of the region x0, y0, x1, y1.", _AREA, {}),
}


def _object(**properties: Any) -> JsonObject:
    return {"type": "object", "properties": properties, "required": list(properties)}


_PLACE = _object(type={"const": "coordinate"}, x=_WHOLE, y=_WHOLE)
_ELEMENT = _object(type={"const": "ref"}, ref=_TEXT)
_ON = {"target": {"anyOf": [_PLACE, _ELEMENT]}}
_ON_PLACE, _ON_ELEMENT = {"target": _PLACE}, {"target": _ELEMENT}
_TAB = {"tab_id": _TEXT}
_WITH_KEYS = {"modifiers": _TEXT, **_TAB}
_BROWSER: _Members = {
    "navigate": ("Go to a URL, or `back`, `forward` or `reload`.", {"url": _TEXT}, _TAB),
    "list_tabs": ("List the open tabs.", {}, {}),
    "new_tab": ("Open an empty tab.", {}, {}),
    "switch_tab": ("Make a tab the active one.", _TAB, {}),
    "close_tab": ("Close a tab.", _TAB, {}),
    "read_page": (
        "Return the elements of the page, or those below the element `ref`, with references such"
        " as ref_7.",
        {},
        {
            "depth": _WHOLE,
            "filter": {"type": "string", "enum": ["all", "interactive"]},
            "ref": _TEXT,
            **_TAB,
        },
    ),
    "get_page_text": ("Return the text of the page.", {}, _TAB),
    "read_console": ("Return new output of the console.", {}, _TAB),
    "read_network": ("Return new requests of the page.", {}, _TAB),
    "find": ("Find elements by a description.", {"query": _TEXT}, _TAB),
    "form_input": (
        "Set the value of a form element.",
        {**_ON_ELEMENT, "value": {"type": ["string", "number", "boolean"]}},
        _TAB,
    ),
    "file_upload": (
        "Set the files of a file input.",
        _ON_ELEMENT,
        {"paths": _TEXTS, "document_ids": _TEXTS, **_TAB},
    ),
    "scroll_to": ("Scroll an element into view.", _ON_ELEMENT, _TAB),
    "screenshot": ("Take a screenshot of the page.", {}, _TAB),
    "zoom": ("Take a screenshot of the region x0, y0, x1, y1.", _AREA, _TAB),
    **{
        name: (f"{what} on an element or a point, holding `modifiers`, if any.", _ON, _WITH_KEYS)
        for name, what in _CLICKS.items()
    },
    "hover": ("Move the cursor to an element or a point.", _ON, _TAB),
    "left_click_drag": ("Drag from a point to another.", {"from": _PLACE, **_ON_PLACE}, _TAB),
    "left_mouse_down": ("Press the left mouse button at a point.", _ON_PLACE, _TAB),
    "left_mouse_up": ("Release the left mouse button at a point.", _ON_PLACE, _TAB),
    "mouse_move": ("Move the cursor to a point.", _ON_PLACE, _TAB),
    "scroll": (
        "Scroll at a point.",
        {**_DIRECTION, **_ON_PLACE},
        {"scroll_amount": _WHOLE, **_TAB},
    ),
    "type": ("Type a text.", _KEYED, _TAB),
    "key": (f"Press {_KEYS}.", _KEYED, {"repeat": _WHOLE, **_TAB}),
    "hold_key": (f"Hold {_KEYS} for some seconds.", {**_KEYED, **_DURATION}, _TAB),
    "wait": ("Wait for some seconds.", _DURATION, _TAB),
    "javascript_exec": (
        "Run JavaScript in the page, and return the value of its last expression.",
        _KEYED,
        _TAB,
    ),
}

#: Type of a toolset → its name, which calls have in ``toolset_name``, and its tools.
TOOLSETS: Mapping[str, tuple[str, _Members]] = {
    "computer_toolset_20260801": ("computer", _COMPUTER),
    "browser_toolset_20260801": ("browser", _BROWSER),
}


def toolset(kind: str, configs: Mapping[str, ToolConfig], path: str) -> tuple[JsonObject, bool]:
    """Return the namespace for a declared toolset, and whether its tools are deferred. ``kind``: a
    key of ``TOOLSETS``. ``configs``: options of some of its tools. Raises ``InvalidRequest``."""
    name, members = TOOLSETS[kind]
    for member in configs:
        if member not in members:
            raise invalid_value(f"{path}.configs", member, members)
    config = {member: configs.get(member, ToolConfig()) for member in members}
    offered = [member for member, each in config.items() if each.enabled is not False]
    deferred = {config[member].defer_loading is True for member in offered}
    if len(deferred) != 1:
        raise invalid_field(
            f"{path}.configs",
            "at least one tool must be enabled, and either all enabled"
            " tools or none must have 'defer_loading'.",
        )
    tools = [_function(member, *members[member]) for member in offered]
    description = f"Use the {name} of the user."
    return {
        "type": "namespace",
        "name": name,
        "description": description,
        "tools": tools,
    }, deferred.pop()


def _function(
    name: str, description: str, required: Mapping[str, Any], optional: Mapping[str, Any]
) -> JsonObject:
    parameters = {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
    }
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": parameters,
    }


def browser_state_text(fields: JsonObject, path: str) -> str:
    """Return the text that shows the model the block ``browser_state`` of a tool result: the open
    tabs, and what has changed. Raises ``InvalidRequest``."""
    lines = ["Open tabs:"]
    for tab, _ in read_objects(fields.get("tabs", []), f"{path}.tabs", 1_000):
        active = " (active)" if tab.get("active") is True else ""
        lines.append(
            " ".join(str(tab.get(each, "")) for each in ("tab_id", "url", "title")) + active
        )
    changes = fields.get("state_changes") or []
    for change, at in read_objects(changes, f"{path}.state_changes", 1_000):
        kind = read_tag(change, at, _CHANGES)
        others = (str(value) for name, value in change.items() if name != "type")
        lines.append(f"{kind.replace('_', ' ')}: {' '.join(others)}")
    return "\n".join(lines)


_CHANGES = ("tab_opened", "download_started", "download_completed", "download_failed")
