"""Settings as they are shown to people: with their origins and without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from .options import Option, literal, options
from .settings import Settings

__all__ = ["ShownSetting", "mask_secrets", "shown_settings", "shown_value"]

_HIDDEN = "hidden"
_SECRET = re.compile("header|key|token$|secret|password|authorization|^env$", re.IGNORECASE)
#: The user information of a URL.
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*:[^@\s]*(?=@)")


class ShownSetting(Struct, frozen=True, kw_only=True):
    """A setting. ``value``: its value as in a settings file; None if it is not set. ``origin``:
    where the value comes from: ``default``, a file, a variable or a flag."""

    name: str
    value: str | None
    origin: str
    group: str
    help: str


def shown_settings(settings: Settings, origins: Mapping[str, str]) -> Iterator[ShownSetting]:
    """Yield all settings in the order of their declaration. If the origin of a setting is unknown,
    it is shown as ``default`` if the value is the default, and as ``program`` if it is another
    value."""
    defaults = Settings()
    for name, option in options(Settings).items():
        value = getattr(settings, name)
        assumed = "default" if value == getattr(defaults, name) else "program"
        yield ShownSetting(
            name=name,
            value=None if value is None else shown_value(option, value),
            origin=origins.get(name, assumed),
            group=option.group,
            help=option.help,
        )


def shown_value(option: Option, value: Any) -> str:
    """Return a value as it would be written in a settings file, without secrets."""
    if option.secret and value:
        return literal(_HIDDEN)
    return _CREDENTIALS.sub(_HIDDEN, literal(mask_secrets(_plain(value))))


def mask_secrets(value: Any) -> Any:
    """Replace values whose names mark them as secret."""
    if isinstance(value, (list, tuple)):
        return [mask_secrets(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _HIDDEN if _SECRET.search(name) and inner else mask_secrets(inner)
        for name, inner in value.items()
    }


def _plain(value: Any) -> Any:
    """Return tables as dictionaries, with only the values that are set. Secret values and the
    digests of keys are masked."""
    if isinstance(value, Struct):
        found = {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        secret = {name for name, option in options(type(value)).items() if option.secret}
        return {
            name: _HIDDEN if name in secret or name == "sha256" else inner
            for name, inner in found.items()
            if inner not in (None, (), {}, [])
        }
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value
