"""Log ignored tools. These are tools of a request that nobody can run: neither this server, nor the
upstream, nor the client."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from antiphon.wire.response import IgnoredTool

__all__ = ["IgnoredToolLog"]

_log = structlog.get_logger(__name__)


class IgnoredToolLog:
    """Logs a warning for the operator about the ignored tools of requests. Each tool type is logged
    once per reason."""

    def __init__(self) -> None:
        self._reported: set[IgnoredTool] = set()

    def report(self, tools: Iterable[IgnoredTool]) -> None:
        for tool in tools:
            if tool not in self._reported:
                self._reported.add(tool)
                _log.warning(f"requests declare {tool.type}, which is ignored: {tool.reason}")
