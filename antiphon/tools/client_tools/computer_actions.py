"""What is done on a screen: the actions of the API, and how those that a model writes become them.
Clients act on what they are given, so half an action is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["ACTION", "computer_actions"]

Json = dict[str, Any]

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_BUTTONS = ("left", "right", "wheel", "back", "forward")
_LOOK: Json = {"type": "screenshot"}
_FAR = 2**31


def computer_actions(arguments: Mapping[str, Any]) -> list[Json]:
    """The actions of a call: ``actions``, or one ``action``, or that the arguments are. One that is
    not whole is a look at the screen, by which the model sees that nothing came of it."""
    given = arguments.get("actions", arguments.get("action", arguments))
    each = given if isinstance(given, list) else [given]
    return [_action(one) or dict(_LOOK) for one in each] or [dict(_LOOK)]


def _action(written: Any) -> Json | None:
    if not isinstance(written, dict):
        return None
    kind = written.get("type")
    rows = _ACTIONS.get(kind) if isinstance(kind, str) else None
    if rows is None:
        return None
    action: Json = {"type": kind}
    for name, (read, usual) in rows.items():
        value = read(written.get(name, usual))
        if value is None:
            return None
        action[name] = value
    if kind not in _WITHOUT_KEYS and (held := _texts(written.get("keys"))):
        action["keys"] = held
    return action


def _whole(value: Any) -> int | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and -_FAR < value < _FAR else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> list[str] | None:
    keys = [value] if isinstance(value, str) else value
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        return None
    return keys or None


def _button(value: Any) -> str | None:
    return value if value in _BUTTONS else None


def _path(value: Any) -> list[Json] | None:
    points = value if isinstance(value, list) else []
    found: list[Json] = []
    for point in points:
        if isinstance(point, dict):
            point = [point.get("x"), point.get("y")]
        if not isinstance(point, list) or len(point) != 2:
            return None
        x, y = _whole(point[0]), _whole(point[1])
        if x is None or y is None:
            return None
        found.append({"x": x, "y": y})
    return found or None


_Field = tuple[Callable[[Any], Any], Any]
_PLACE: Mapping[str, _Field] = {"x": (_whole, None), "y": (_whole, None)}
#: What each action is made of, how that is read, and what it is where it is not said.
_ACTIONS: Mapping[str, Mapping[str, _Field]] = {
    "click": {"button": (_button, "left"), **_PLACE},
    "double_click": _PLACE,
    "drag": {"path": (_path, None)},
    "keypress": {"keys": (_texts, None)},
    "move": _PLACE,
    "screenshot": {},
    "scroll": {**_PLACE, "scroll_x": (_whole, 0), "scroll_y": (_whole, 0)},
    "type": {"text": (_text, None)},
    "wait": {},
}
_WITHOUT_KEYS = frozenset({"keypress", "screenshot", "type", "wait"})

_POINT = {"type": "object", "properties": {"x": _WHOLE, "y": _WHOLE}, "required": ["x", "y"]}
#: The schema of an action.
ACTION: Json = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": list(_ACTIONS)},
        "x": _WHOLE,
        "y": _WHOLE,
        "button": {"enum": list(_BUTTONS)},
        "path": {"type": "array", "items": _POINT},
        "keys": {"type": "array", "items": _TEXT},
        "text": _TEXT,
        "scroll_x": _WHOLE,
        "scroll_y": _WHOLE,
    },
    "required": ["type"],
}
