"""Small steps of decoding that items, tools and settings share."""

from __future__ import annotations

import re
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from .faults import bad_type, from_validation, kind_of

__all__ = ["converted", "literals", "without_nulls"]

_S = TypeVar("_S", bound=msgspec.Struct)
_FIELD = re.compile(r"`\$\.([A-Za-z_]+)`$")


def without_nulls(raw: dict[str, Any]) -> dict[str, Any]:
    """Null means "not given"."""
    return {name: value for name, value in raw.items() if value is not None}


def converted(raw: Any, cls: type[_S], path: str) -> _S:
    """``raw`` as a ``cls``. Raises ``InvalidRequest`` with the path of what does not fit."""
    if not isinstance(raw, dict):
        raise bad_type(path, "an object", kind_of(raw))
    try:
        return msgspec.convert(raw, cls, str_keys=True)
    except msgspec.ValidationError as error:
        raise from_validation(error, path, raw, literals(cls, error)) from None


def literals(cls: type[msgspec.Struct], error: msgspec.ValidationError) -> tuple[Any, ...]:
    """The values allowed in the field of ``cls`` that msgspec complains about, if it lists any."""
    field = _FIELD.search(str(error))
    return _allowed(cls).get(field.group(1), ()) if field else ()


@lru_cache(maxsize=256)
def _allowed(cls: type[msgspec.Struct]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(_values(hint)) for name, hint in get_type_hints(cls).items()}


def _values(hint: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return [value for arm in get_args(hint) for value in _values(arm)]
    return []
