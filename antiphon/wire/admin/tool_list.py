"""The list of the tools that a server runs."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from antiphon.wire.tools import HostedTool

__all__ = ["ToolEntry", "ToolList"]


class ToolEntry(Struct, frozen=True, kw_only=True):
    """A tool type of requests.

    ``reason``: why the server cannot run it now, and what to do; null if it can."""

    type: HostedTool
    available: bool
    reason: str | None = None


class ToolList(Struct, frozen=True, kw_only=True):
    """The tools that this server runs or could run."""

    object: Literal["list"] = "list"
    data: tuple[ToolEntry, ...]
