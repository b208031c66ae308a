"""The domains that a box may reach, and the secrets that requests use but that the code in the box
cannot read."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

__all__ = ["BoxSecret", "EgressPolicy"]


class BoxSecret(Struct, frozen=True, kw_only=True):
    """A secret for requests to ``domain``. Code in the box reads ``placeholder`` from the variable
    ``name``. The proxy replaces the placeholder by ``value``."""

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
        """The environment variables with the placeholders of the secrets, for code in the box."""
        return {secret.name: secret.placeholder for secret in self.secrets}

    def insert_secrets(self, domain: str, text: str) -> str:
        """Return the text of a request to ``domain``, with placeholders replaced by the secrets of
        this domain."""
        for secret in self.secrets:
            if secret.domain == domain:
                text = text.replace(secret.placeholder, secret.value)
        return text
