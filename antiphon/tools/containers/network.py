"""Network access of containers. The programs in a container reach the network only through a proxy.
The request's network policy determines which domains the proxy allows."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from antiphon.sandbox.egress.authority import BoxAuthority
from antiphon.sandbox.egress.policy import BoxSecret, EgressPolicy
from antiphon.sandbox.egress.proxy import Dialer, EgressProxy
from antiphon.wire.resources.containers import NetworkPolicy

#: Makes the proxy of a container from its network policy. Blocks the thread for a few milliseconds.
OpenEgress: TypeAlias = Callable[[NetworkPolicy], EgressProxy]


def open_egress(
    policy: NetworkPolicy,
    *,
    dialer: Dialer,
    clock: Callable[[], float],
    ids: Callable[[str], str],
) -> EgressProxy:
    """Return the proxy for a network policy of type ``allowlist``. ``clock`` returns Unix seconds.
    ``ids`` makes unguessable placeholders, which code in the container uses instead of the
    secrets."""
    secrets = tuple(
        BoxSecret(
            domain=each.domain.lower(), name=each.name, value=each.value, placeholder=ids("secret")
        )
        for each in policy.secrets
    )
    egress = EgressPolicy(domains=frozenset(policy.domains), secrets=secrets)
    return EgressProxy(egress, BoxAuthority(clock), dialer)


def network_key(policy: NetworkPolicy | None) -> str:
    """Return a hash of a network policy and its secrets. The hash is empty if the policy allows no
    network access. A container can be reused for policies with the same hash."""
    if policy is None or policy.type == "disabled":
        return ""
    return sha256(msgspec.json.encode((sorted(policy.domains), policy.secrets))).hexdigest()


def network_prompt(policy: NetworkPolicy | None) -> str:
    """Return the text that tells the model which domains its container can reach. The text is empty
    if the container has no network access."""
    if policy is None or not policy.domains:
        return ""
    lines = [
        "",
        "The container reaches these domains by HTTP and HTTPS, and nothing else: "
        + ", ".join(policy.domains)
        + ".",
    ]
    if policy.secrets:
        names = ", ".join(f"{each.name} (for {each.domain.lower()})" for each in policy.secrets)
        lines.append(
            "Environment variables that stand for secrets in HTTPS requests (in headers and query"
            f" parameters): {names}."
        )
    return "\n".join(lines)


def shown_policy(policy: NetworkPolicy | None) -> NetworkPolicy:
    """Return a network policy in the form that clients see: without its secrets."""
    return NetworkPolicy() if policy is None else replace(policy, domain_secrets=msgspec.UNSET)
