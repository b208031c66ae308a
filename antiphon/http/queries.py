"""Query strings, in all the ways clients write lists. Unknown parameters are ignored, bad values
are refused by name. It knows no route.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import parse_qsl

from starlette.types import Scope

from antiphon.errors import InvalidRequest

__all__ = ["Query"]

_MOST_FIELDS = 200
_SUBSCRIPT = re.compile(r"\[\d*\]\Z")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class Query:
    """One request's parameters. A list is ``name[]=a&name[]=b``, ``name[0]=a`` or ``name=a``."""

    def __init__(self, scope: Scope) -> None:
        text = scope["query_string"].decode("latin-1")
        self._values: dict[str, list[str]] = {}
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
        except ValueError:
            raise InvalidRequest("Too many query parameters.") from None
        for name, value in pairs:
            self._values.setdefault(_SUBSCRIPT.sub("", name), []).append(value)

    def many(self, name: str, options: Collection[str]) -> tuple[str, ...]:
        """A list of some of ``options``; empty if it was not given."""
        values = tuple(self._values.get(name, ()))
        for value in values:
            _check(name, value, options)
        return values

    def text(self, name: str) -> str | None:
        """One value, the last one given; None if there is none or it is empty."""
        return self._values.get(name, [""])[-1] or None

    def choice(self, name: str, options: Collection[str], default: str) -> str:
        """One of ``options``."""
        value = self.text(name) or default
        _check(name, value, options)
        return value

    def flag(self, name: str) -> bool:
        """True or false; false if it was not given."""
        value = self.text(name)
        if value is None:
            return False
        if value.lower() not in _FLAGS:
            raise InvalidRequest(
                f"Invalid type for '{name}': expected a boolean, but got '{value}' instead.",
                param=name,
                code="invalid_type",
            )
        return _FLAGS[value.lower()]

    def number(self, name: str, *, low: int, high: int | None = None) -> int | None:
        """A whole number between the bounds, both included; None if it was not given."""
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,18}", value):
            raise InvalidRequest(
                f"Invalid type for '{name}': expected an integer, but got '{value}' instead.",
                param=name,
                code="invalid_type",
            )
        number = int(value)
        if number < low:
            raise _out_of_range(name, number, "below minimum", ">=", low)
        if high is not None and number > high:
            raise _out_of_range(name, number, "above maximum", "<=", high)
        return number


def _check(name: str, value: str, options: Collection[str]) -> None:
    if value not in options:
        supported = ", ".join(f"'{option}'" for option in options)
        raise InvalidRequest(
            f"Invalid value: '{value}'. Supported values are: {supported}.",
            param=name,
            code="invalid_value",
        )


def _out_of_range(name: str, number: int, where: str, sign: str, bound: int) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{name}': integer {where} value. Expected a value {sign} {bound}, "
        f"but got {number} instead.",
        param=name,
        code=f"integer_{where.replace('imum', '').replace(' ', '_')}_value",
    )
