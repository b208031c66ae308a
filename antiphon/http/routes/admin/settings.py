"""Endpoint that lists the server's settings."""

from __future__ import annotations

from starlette.requests import Request

from antiphon.http.middleware.auth import AuthConfig, check_role
from antiphon.http.openapi.operation import operation
from antiphon.wire.admin.settings import SettingList


class SettingRoutes:
    """The route ``/antiphon/settings``."""

    def __init__(self, settings: SettingList, access: AuthConfig) -> None:
        self._settings = settings
        self._access = access

    @operation("GET /antiphon/settings", "listSettings", errors=(403,))
    async def list(self, request: Request) -> SettingList:
        """List the settings with their origins, without secrets."""
        check_role(request.scope, self._access, "operator", "auditor", action="see the settings")
        return self._settings
