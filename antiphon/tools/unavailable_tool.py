"""The provider of a tool that is switched off. It reports why the tool cannot be used."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from antiphon.errors import ToolError
from antiphon.wire.tools import Tool

from .base import ResponseContext, ToolProvider, Toolset


class UnavailableTool(ToolProvider[Tool]):
    """``ToolProvider`` of a tool that is switched off. ``reason``: text that says why the tool is
    off and which setting switches it on."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def unavailable_reason(self) -> str | None:
        return self._reason

    def open(self, tool: Tool, response: ResponseContext) -> AbstractAsyncContextManager[Toolset]:
        raise ToolError(self._reason)
