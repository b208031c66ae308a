"""Computer actions: the actions of the API, and the translation of a model's arguments into these
actions.

Clients execute every action that they receive, so an incomplete action is replaced by the action
``screenshot``, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from antiphon.wire.json_types import JsonObject

_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_BUTTONS = ("left", "right", "wheel", "back", "forward")
_SCREENSHOT: JsonObject = {"type": "screenshot"}
_MAX_COORDINATE = 2**31


def computer_actions(arguments: Mapping[str, object]) -> list[JsonObject]:
    """Return the actions of a computer call. The model writes them in the argument ``actions`` or
    ``action``. If both are missing, the arguments themselves are one action.

    An incomplete action becomes a screenshot, which shows the model that nothing happened.
    """
    actions = arguments.get("actions", arguments.get("action", arguments))
    each = actions if isinstance(actions, list) else [actions]
    return [_read_action(one) or dict(_SCREENSHOT) for one in each] or [dict(_SCREENSHOT)]


def _read_action(action_arguments: object) -> JsonObject | None:
    if not isinstance(action_arguments, dict):
        return None
    kind = action_arguments.get("type")
    fields = _ACTIONS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        return None
    action: JsonObject = {"type": kind}
    for name, (read, default) in fields.items():
        value = read(action_arguments.get(name, default))
        if value is None:
            return None
        action[name] = value
    if kind not in _WITHOUT_KEYS and (keys := _read_strings(action_arguments.get("keys"))):
        action["keys"] = keys
    return action


def _read_integer(value: Any) -> int | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and -_MAX_COORDINATE < value < _MAX_COORDINATE else None


def _read_string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _read_strings(value: object) -> list[str] | None:
    keys = [value] if isinstance(value, str) else value
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        return None
    return keys or None


def _read_button(value: object) -> str | None:
    return value if value in _BUTTONS else None


def _read_path(value: object) -> list[JsonObject] | None:
    points = value if isinstance(value, list) else []
    path: list[JsonObject] = []
    for point in points:
        if isinstance(point, dict):
            point = [point.get("x"), point.get("y")]
        if not isinstance(point, list) or len(point) != 2:
            return None
        x, y = _read_integer(point[0]), _read_integer(point[1])
        if x is None or y is None:
            return None
        path.append({"x": x, "y": y})
    return path or None


_Field = tuple[Callable[[Any], Any], Any]
_POSITION: Mapping[str, _Field] = {"x": (_read_integer, None), "y": (_read_integer, None)}
#: Action → the fields of the action. Each field has a function that reads it and a default value.
_ACTIONS: Mapping[str, Mapping[str, _Field]] = {
    "click": {"button": (_read_button, "left"), **_POSITION},
    "double_click": _POSITION,
    "drag": {"path": (_read_path, None)},
    "keypress": {"keys": (_read_strings, None)},
    "move": _POSITION,
    "screenshot": {},
    "scroll": {**_POSITION, "scroll_x": (_read_integer, 0), "scroll_y": (_read_integer, 0)},
    "type": {"text": (_read_string, None)},
    "wait": {},
}
_WITHOUT_KEYS = frozenset({"keypress", "screenshot", "type", "wait"})

_POINT = {"type": "object", "properties": {"x": _INTEGER, "y": _INTEGER}, "required": ["x", "y"]}
#: JSON Schema of an action.
ACTION: JsonObject = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": list(_ACTIONS)},
        "x": _INTEGER,
        "y": _INTEGER,
        "button": {"enum": list(_BUTTONS)},
        "path": {"type": "array", "items": _POINT},
        "keys": {"type": "array", "items": _STRING},
        "text": _STRING,
        "scroll_x": _INTEGER,
        "scroll_y": _INTEGER,
    },
    "required": ["type"],
}
