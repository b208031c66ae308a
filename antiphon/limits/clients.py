"""The client of a request: who sends it, and the limits of its API key and its tenant."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from msgspec import Struct, convert

from antiphon.errors import Forbidden, model_not_found
from antiphon.wire.admin.client_limits import ClientLimits

#: What a client may do beyond using the API:
#:
#: - ``operator``: manage the server, and read what an auditor reads.
#: - ``auditor``: read the settings, the audit log and the usage of all tenants.
#: - ``prompt_editor``: read and change stored prompts.
Role = Literal["operator", "auditor", "prompt_editor"]

#: Types of tools that run on the client's machine. ``ClientLimits.tools`` does not apply to them.
_ALWAYS_ALLOWED = frozenset({"function", "custom", "namespace"})


def limits_of(source: ClientLimits) -> ClientLimits:
    """Return only the limits of ``source``, such as an API key, without its other fields."""
    return convert(source, ClientLimits, from_attributes=True)


class LimitScope(Struct, frozen=True):
    """An API key or a tenant, with its limits. The limits apply to all requests with this key, or
    to all requests of this tenant. ``name``: the name of the key or of the tenant."""

    kind: Literal["key", "tenant"]
    name: str
    limits: ClientLimits

    @property
    def id(self) -> str:
        """The id under which the store counts the requests of this key or tenant."""
        return f"{self.kind} {self.name}"

    @property
    def owner(self) -> str:
        """The words for this key or tenant in error messages: ``Your API key`` or ``Your
        organization``."""
        return "Your API key" if self.kind == "key" else "Your organization"


class Client(Struct, frozen=True, kw_only=True):
    """The sender of a request. ``key``: the name of the API key in the request. ``roles``: the
    roles of this key. ``scopes``: the limits of this key and of its tenant; a key or tenant without
    limits is left out. A request must stay within the limits of all scopes."""

    key: str | None = None
    roles: frozenset[Role] = frozenset()
    scopes: tuple[LimitScope, ...] = ()

    def allows_model(self, names: Collection[str]) -> bool:
        """Whether the client may use a model. ``names``: the name of the model, and the name that
        the request uses for it."""
        for scope in self.scopes:
            if scope.limits.models is not None and set(names).isdisjoint(scope.limits.models):
                return False
        return True

    def check_model(self, name: str, requested: str | None) -> None:
        """Raise ``NotFound`` for a model that the client may not use. ``name``: the name of the
        model. ``requested``: the name that the request uses for it; None if the request names no
        model."""
        if not self.allows_model((name, requested or name)):
            raise model_not_found(requested or name)

    def check_any_tool(self, *types: str) -> None:
        """Raise ``Forbidden`` unless the client may use one of these types of tools. Called for
        requests for what only these tools use, such as a container."""
        for scope in self.scopes:
            if scope.limits.tools is not None and set(types).isdisjoint(scope.limits.tools):
                raise _tool_not_allowed(scope, types[0], None)

    def check_tools(self, types: Iterable[str]) -> None:
        """Raise ``Forbidden`` for a tool that the client may not use. ``types``: the type of each
        tool of the request, in order."""
        for scope in self.scopes:
            if scope.limits.tools is None:
                continue
            allowed = _ALWAYS_ALLOWED.union(scope.limits.tools)
            for index, type in enumerate(types):
                if type not in allowed:
                    raise _tool_not_allowed(scope, type, f"tools[{index}]")


def _tool_not_allowed(scope: LimitScope, type: str, param: str | None) -> Forbidden:
    message = f"{scope.owner} may not use the tool '{type}'."
    return Forbidden(message, param=param, code="tool_not_allowed")


#: A client without limits.
ANYONE = Client()
