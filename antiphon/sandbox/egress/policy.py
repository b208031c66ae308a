"""What a box may reach, and the secrets that it uses without knowing them."""

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
    """``domains``: host names in lower case that a box may reach. Each is exact."""

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
