"""The server's settings, as its operators see them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["SettingEntry", "SettingList"]


class SettingEntry(Struct, frozen=True, kw_only=True):
    """One setting.

    ``value``: the value as in a settings file, with secrets hidden. It is null if the setting has
    no value. ``origin``: ``default``, or the file, the environment variable or the flag that sets
    the value.
    """

    name: str
    value: str | None
    origin: str
    group: str
    help: str


class SettingList(Struct, frozen=True, kw_only=True):
    """All settings, in the order of the documentation."""

    object: Literal["list"] = "list"
    data: tuple[SettingEntry, ...]
