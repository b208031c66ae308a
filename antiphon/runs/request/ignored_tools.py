"""Warn the operator once about each tool that requests declare and that neither the server, the
upstream nor the client runs."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from antiphon.wire.response import IgnoredTool

__all__ = ["IgnoredToolLog"]

_log = structlog.get_logger(__name__)


class IgnoredToolLog:
    """Logs a warning for each ignored tool, once for each reason why it is ignored."""

    def __init__(self) -> None:
        self._reported: set[IgnoredTool] = set()

    def report(self, tools: Iterable[IgnoredTool]) -> None:
        for tool in tools:
            if tool not in self._reported:
                self._reported.add(tool)
                _log.warning(f"requests declare {tool.type}, which is ignored: {tool.reason}")
