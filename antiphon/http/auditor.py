"""Records the administrative acts of requests."""

from __future__ import annotations

import structlog
from starlette.types import Scope

from antiphon.http.middleware.auth import AuthConfig
from antiphon.http.middleware.request_context import request_context
from antiphon.resources.admin.audit import AuditTrail

__all__ = ["Auditor"]

_log = structlog.get_logger(__name__)


class Auditor:
    """Records who sent a request and what the request did, in the audit log and in the server's
    log."""

    def __init__(self, trail: AuditTrail, access: AuthConfig) -> None:
        self._trail = trail
        self._operators = access.operators

    async def record(self, scope: Scope, type: str, target: str) -> None:
        """Record an act."""
        context = request_context(scope)
        client = scope.get("client")
        _log.info("administrative act", type=type, target=target, by=context.key)
        await self._trail.record(
            type,
            target,
            key=context.key,
            tenant=context.tenant,
            address=client[0] if client is not None else "",
        )

    async def record_operator(self, scope: Scope, type: str, target: str) -> None:
        """Record an operation of everyday use, but only if the request's API key is an operator's
        key."""
        if request_context(scope).key in self._operators:
            await self.record(scope, type, target)
