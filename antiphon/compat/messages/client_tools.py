"""Anthropic's tools that the client runs and whose input has a fixed schema, such as ``bash``.

A request names only the version of such a tool. Anthropic's models are trained to use it. Other
models get its description and its schema from the table here, as for a function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.wire.json_types import JsonObject


class _ClientTool(Struct, frozen=True):
    """A tool for the model. ``options``: field of the declaration → a sentence that is added to the
    description. The sentence contains the value of the field."""

    description: str
    parameters: JsonObject
    options: Mapping[str, str] = {}


def client_tool(kind: str, declared: JsonObject) -> JsonObject:
    """Return the function for a declared tool, in the form of the Responses API. ``kind``: a key of
    ``CLIENT_TOOLS``."""
    tool = CLIENT_TOOLS[kind]
    if kind == "computer_20251124" and declared.get("enable_zoom") is True:
        tool = _ZOOMING
    stated = [
        text.format(declared[field]) for field, text in tool.options.items() if declared.get(field)
    ]
    return {
        "type": "function",
        "name": declared["name"],
        "description": " ".join([tool.description, *stated]),
        "parameters": tool.parameters,
    }


def _text(description: str) -> JsonObject:
    return {"type": "string", "description": description}


def _whole(description: str) -> JsonObject:
    return {"type": "integer", "description": description}


def _pair(description: str) -> JsonObject:
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    return {**numbers, "description": description}


def _commands(name: str, *commands: str) -> JsonObject:
    return {name: {"type": "string", "enum": list(commands)}}


def _schema(properties: Mapping[str, Any], *required: str) -> JsonObject:
    return {"type": "object", "properties": dict(properties), "required": list(required)}


_LINES = _pair("For view: the first and the last line to show, counted from 1; -1 is the end.")
_EDITS: Mapping[str, Any] = {
    "old_str": _text("For str_replace: the text to replace. It must occur exactly once."),
    "new_str": _text("For str_replace: the new text."),
    "insert_line": _whole("For insert: the line after which the text goes; 0 is the beginning."),
}
_EDITOR = "View, create and edit text files."
_EDITOR_COMMANDS = ("view", "create", "str_replace", "insert")


def _editor(*more_commands: str, inserted: str = "insert_text") -> _ClientTool:
    """``inserted``: the name of the field with the text for the command ``insert``."""
    properties = {
        **_commands("command", *_EDITOR_COMMANDS, *more_commands),
        "path": _text("The absolute path of a file, or of a folder for view."),
        "view_range": _LINES,
        "file_text": _text("For create: the content of the file."),
        **_EDITS,
    }
    if inserted not in properties:
        properties[inserted] = _text("For insert: the text.")
    limit = {"max_characters": "view shows at most {} characters."}
    return _ClientTool(_EDITOR, _schema(properties, "command", "path"), limit)


_ACTIONS = (
    "key",
    "type",
    "mouse_move",
    "left_click",
    "left_click_drag",
    "right_click",
    "middle_click",
    "double_click",
    "screenshot",
    "cursor_position",
)
_MORE_ACTIONS = (
    "triple_click",
    "left_mouse_down",
    "left_mouse_up",
    "scroll",
    "hold_key",
    "wait",
)


def _computer(*more_actions: str) -> _ClientTool:
    properties: dict[str, Any] = {
        **_commands("action", *_ACTIONS, *more_actions),
        "coordinate": _pair("The point (x, y) of a mouse action, in pixels from the top left."),
        "text": _text("For type: the text. For key and hold_key: the keys, such as ctrl+s."),
    }
    if more_actions:
        properties |= {
            "start_coordinate": _pair("For left_click_drag: the point where the drag begins."),
            **_commands("scroll_direction", "up", "down", "left", "right"),
            "scroll_amount": _whole("For scroll: the number of clicks of the wheel."),
            "duration": {"type": "number", "description": "For wait and hold_key: seconds."},
        }
    if "zoom" in more_actions:
        area = {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4}
        properties["region"] = {**area, "description": "For zoom: x0, y0, x1, y1."}
    return _ClientTool(
        "Use the screen, the keyboard and the mouse of a computer. Take a screenshot to see the"
        " result of an action.",
        _schema(properties, "action"),
        {
            "display_width_px": "The screen is {} pixels wide.",
            "display_height_px": "The screen is {} pixels high.",
        },
    )


_BASH = _ClientTool(
    "Run a command in a persistent bash session.",
    _schema(
        {
            "command": _text("The command to run."),
            "restart": {"type": "boolean", "description": "Start a new session instead."},
        }
    ),
)
_MEMORY = _ClientTool(
    "Keep notes in files under /memories, which last from one conversation to the next. Look there"
    " for earlier notes before a task, and note what is worth to be known later.",
    _schema(
        {
            **_commands("command", *_EDITOR_COMMANDS, "delete", "rename"),
            "path": _text("The path, for all commands except rename. It begins with /memories."),
            "view_range": _LINES,
            "file_text": _text("For create: the content of the file."),
            **_EDITS,
            "insert_text": _text("For insert: the text."),
            "old_path": _text("For rename: the present path."),
            "new_path": _text("For rename: the new path."),
        },
        "command",
    ),
)

_ZOOMING = _computer(*_MORE_ACTIONS, "zoom")

#: Type of a tool in a request → the tool for the model.
CLIENT_TOOLS: Mapping[str, _ClientTool] = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _editor("undo_edit", inserted="new_str"),
    "text_editor_20250124": _editor("undo_edit", inserted="new_str"),
    "text_editor_20250429": _editor(inserted="new_str"),
    "text_editor_20250728": _editor(),
    "memory_20250818": _MEMORY,
    "computer_20241022": _computer(),
    "computer_20250124": _computer(*_MORE_ACTIONS),
    "computer_20251124": _computer(*_MORE_ACTIONS),
}
