"""Endpoint that lists the server-side tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from antiphon.http.openapi.operation import operation
from antiphon.wire.admin.server_info import ToolList

if TYPE_CHECKING:
    from antiphon.runs.service import Service


class ToolRoutes:
    """The route ``/antiphon/tools``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @operation("GET /antiphon/tools", "listTools")
    async def list(self, request: Request) -> ToolList:
        """List the server-side tools. For a tool that does not work now, the list gives the
        reason."""
        return ToolList(data=self._service.tools())
