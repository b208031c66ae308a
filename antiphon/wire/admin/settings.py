"""Types of the answer of ``GET /antiphon/settings``, which shows operators the server's
settings."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class SettingEntry(Struct, frozen=True, kw_only=True):
    """One setting.

    ``value``: the value as in a settings file, with secrets hidden. It is null if the setting has
    no value. ``origin``: the file, the environment variable or the flag that sets the value;
    ``default`` for a default value; ``program`` if code has set the value.
    """

    name: str
    value: str | None
    origin: str
    group: str
    help: str


class SettingList(Struct, frozen=True, kw_only=True):
    """The answer of ``GET /antiphon/settings``: all settings of the server, in the order in which
    the documentation lists them."""

    object: Literal["list"] = "list"
    data: tuple[SettingEntry, ...]
