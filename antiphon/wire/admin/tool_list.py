"""Types of the answer to ``GET /antiphon/tools``: the server-side tools, and whether each of them
can be used now."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.wire.tools import HostedTool


class ToolEntry(Struct, frozen=True, kw_only=True):
    """A type of tool that requests can use.

    ``reason``: why the server cannot run the tool now, and what to do. It is null if the server can
    run it. ``server_labels``: for ``mcp``, the MCP servers that the operator has configured.
    """

    type: HostedTool
    available: bool
    reason: str | None = None
    server_labels: tuple[str, ...] | UnsetType = UNSET


class ToolList(Struct, frozen=True, kw_only=True):
    """The tools that this server runs or could run."""

    object: Literal["list"] = "list"
    data: tuple[ToolEntry, ...]
