"""What the claims of a token permit: its tenant, its roles and its limits.

An issuer's grants are rows, and the first row that matches the claims counts. Without a matching
row, the token permits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.errors import Forbidden
from antiphon.limits.clients import Role
from antiphon.wire.admin.client_limits import ClientLimits

#: Maximum number of characters of a user's or a tenant's name.
_MAX_NAME_CHARS = 256


class Grant(Struct, frozen=True, kw_only=True):
    """A row of an issuer's grants.

    - ``claim``: the path of a claim, with dots between the names of nested objects. Empty: the row
      matches every token.
    - ``values``: the row matches if the claim is one of these values, or a list with one of them.
      Empty: any value.
    - ``tenant``: the tenant of matching tokens.
    - ``tenant_claim``: path of the claim that contains the tenant; it replaces ``tenant``.
    - ``role``: the role of matching tokens; None for ordinary users.
    - ``limits``: the limits of each user.
    """

    claim: str = ""
    values: tuple[str, ...] = ()
    tenant: str = "default"
    tenant_claim: str = ""
    role: Role | None = None
    limits: ClientLimits = ClientLimits()


class IssuerRules(Struct, frozen=True, kw_only=True):
    """The rules of one issuer. ``name``: its name in the settings. ``user_claim``: path of the
    claim that names the user."""

    name: str
    grants: tuple[Grant, ...]
    user_claim: str = "sub"


class Identity(Struct, frozen=True, kw_only=True):
    """A user, as the server knows them after a token was verified. ``name``: the issuer's name in
    the settings, a slash, and the user's name."""

    name: str
    tenant: str
    roles: frozenset[Role]
    limits: ClientLimits


def identify(claims: Mapping[str, Any], rules: IssuerRules) -> Identity:
    """Return the identity for verified claims. Raises ``Forbidden`` if no grant matches them."""
    user = _name(claims, rules.user_claim)
    for grant in rules.grants:
        if _matches(claims, grant):
            return Identity(
                name=f"{rules.name}/{user}",
                tenant=_name(claims, grant.tenant_claim) if grant.tenant_claim else grant.tenant,
                roles=frozenset() if grant.role is None else frozenset({grant.role}),
                limits=grant.limits,
            )
    raise Forbidden(
        "Your account may not use this server: no grant of the issuer"
        f" '{rules.name}' matches its claims.",
        code="no_grant",
    )


def relevant_claims(claims: Mapping[str, Any], rules: IssuerRules) -> dict[str, Any]:
    """Return only those claims that ``identify`` reads for these rules, path → value. Of a list of
    values, such as the groups of a user, only those are returned that a grant names."""
    named: dict[str, set[str]] = {rules.user_claim: set()}
    for grant in rules.grants:
        named.setdefault(grant.claim, set()).update(grant.values)
        named.setdefault(grant.tenant_claim, set())
    found = {path: _find(claims, path) for path in named if path}
    for path, value in found.items():
        if isinstance(value, list):
            found[path] = [each for each in value if each in named[path]] or value[:1]
    return {path: value for path, value in found.items() if value is not None}


def _matches(claims: Mapping[str, Any], grant: Grant) -> bool:
    if not grant.claim:
        return True
    found = _find(claims, grant.claim)
    values = found if isinstance(found, Sequence) and not isinstance(found, str) else (found,)
    texts = {each for each in values if isinstance(each, str)}
    return not texts.isdisjoint(grant.values) if grant.values else bool(texts)


def _name(claims: Mapping[str, Any], path: str) -> str:
    """Return the claim at ``path``, which names a user or a tenant. Raises ``Forbidden`` if it is
    not a name."""
    found = _find(claims, path)
    if isinstance(found, str) and 0 < len(found) <= _MAX_NAME_CHARS and found.isprintable():
        return found
    raise Forbidden(f"The claim '{path}' of your account is not a name.", code="no_grant")


def _find(claims: Mapping[str, Any], path: str) -> Any:
    """Return the claim at a path, or None. A claim whose own name contains dots, such as
    ``https://example.com/groups``, is found by its whole name."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
