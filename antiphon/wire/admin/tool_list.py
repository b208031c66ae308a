"""Types of the answer to ``GET /antiphon/tools``: the server-side tools, and whether each of them
can be used now."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from antiphon.wire.tools import HostedTool


class ToolEntry(Struct, frozen=True, kw_only=True):
    """A type of tool that requests can use.

    ``reason``: why the server cannot run the tool now, and what to do. It is null if the server can
    run it.
    """

    type: HostedTool
    available: bool
    reason: str | None = None


class ToolList(Struct, frozen=True, kw_only=True):
    """The tools that this server runs or could run."""

    object: Literal["list"] = "list"
    data: tuple[ToolEntry, ...]
