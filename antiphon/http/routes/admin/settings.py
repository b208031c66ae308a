"""Endpoint that lists the server's settings."""

from __future__ import annotations

from starlette.requests import Request

from antiphon.http.openapi.operation import Permission, operation
from antiphon.wire.admin.server_info import SettingList

_ALLOWED = Permission(("operator", "auditor"), "see the settings")


class SettingRoutes:
    """The route ``/antiphon/settings``."""

    def __init__(self, settings: SettingList) -> None:
        self._settings = settings

    @operation("GET /antiphon/settings", "listSettings", permission=_ALLOWED)
    async def list(self, request: Request) -> SettingList:
        """List the settings with their origins, without secrets."""
        return self._settings
