"""The domains that a box may reach, and secrets that its requests use but its code cannot read."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

__all__ = ["BoxSecret", "EgressPolicy"]


class BoxSecret(Struct, frozen=True, kw_only=True):
    """A secret for requests to ``domain``. Code in the box reads ``placeholder`` from the variable
    ``name``; the proxy replaces it by ``value``."""

    domain: str
    name: str
    value: str
    placeholder: str


class EgressPolicy(Struct, frozen=True, kw_only=True):
    """The domains and secrets of a box. ``domains``: host names in lower case that the box may
    reach. Subdomains are not included."""

    domains: frozenset[str]
    secrets: tuple[BoxSecret, ...] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of the secrets, for the box."""
        return {secret.name: secret.placeholder for secret in self.secrets}

    def insert_secrets(self, domain: str, text: str) -> str:
        """Return text of a request to ``domain`` with the secrets of this domain."""
        for secret in self.secrets:
            if secret.domain == domain:
                text = text.replace(secret.placeholder, secret.value)
        return text
