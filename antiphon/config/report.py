"""Show settings to operators, with the origin of each value and without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from antiphon.wire.admin.server_info import SettingEntry

from .options import Option, literal, options, setting_value
from .settings import Settings

_HIDDEN = "hidden"
_SECRET = re.compile("header|key|token$|secret|password|authorization|^env$", re.IGNORECASE)
#: The user name and password in a URL.
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*:[^@\s]*(?=@)")


def report_settings(settings: Settings, origins: Mapping[str, str]) -> Iterator[SettingEntry]:
    """Yield all settings in the order of their declaration. ``origins``: name of a setting → origin
    of its value. A setting without an entry gets the origin ``default`` if it has the default
    value. Otherwise it gets the origin ``program``, because code has set it."""
    defaults = Settings()
    for name, option in options(Settings).items():
        value = setting_value(settings, name)
        assumed = "default" if value == setting_value(defaults, name) else "program"
        yield SettingEntry(
            name=name,
            value=None if value is None else shown_value(option, value),
            origin=origins.get(name, assumed),
            group=option.group if option.table is None else f"[{option.table}]",
            help=option.help,
        )


def shown_value(option: Option, value: object) -> str:
    """Return a value as a settings file would contain it, with secrets replaced by ``hidden``."""
    if option.secret and value:
        return literal(_HIDDEN)
    return _CREDENTIALS.sub(_HIDDEN, literal(_mask_secrets(_plain(value))))


def _mask_secrets(value: object) -> object:
    """Return ``value``, a setting, with every secret in it replaced by ``hidden``. A secret is a
    value in a table under a key such as ``api_key``. ``value`` may contain nested lists and
    tables."""
    if isinstance(value, (list, tuple)):
        return [_mask_secrets(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _HIDDEN if _SECRET.search(name) and inner else _mask_secrets(inner)
        for name, inner in value.items()
    }


def _plain(value: object) -> object:
    """Convert the structs in a value to dictionaries. Values that are not set are left out. Secret
    values and the digests of API keys are replaced by ``hidden``."""
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
