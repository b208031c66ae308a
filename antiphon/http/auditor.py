"""Record administrative actions, such as the creation of an API key."""

from __future__ import annotations

import structlog
from starlette.types import Scope

from antiphon.http.middleware.request_context import request_context
from antiphon.resources.admin.audit import AuditTrail

_log = structlog.get_logger(__name__)


class Auditor:
    """Records administrative actions of requests: who sent the request, what it did, and to which
    object. The actions are written to the audit log and to the server's log."""

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail

    async def record(self, scope: Scope, type: str, target: str) -> None:
        """Record an administrative action. ``type``: the kind of action, such as
        ``api_key.created``. ``target``: the name or id of the object."""
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
        """Record an action, such as deleting a response, if the request has an operator's API key.
        Clients without such a key may perform the same action, but it is not recorded."""
        if "operator" in request_context(scope).client.roles:
            await self.record(scope, type, target)
