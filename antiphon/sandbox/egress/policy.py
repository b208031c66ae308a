"""The domains that a box (sandbox environment) may reach, and the secrets for requests to these
domains. The code in the box cannot read these secrets."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class BoxSecret(Struct, frozen=True, kw_only=True):
    """A secret for requests to ``domain``. Code in the box reads ``placeholder`` from the
    environment variable ``name``. In requests to the domain, the proxy replaces the placeholder
    with ``value``."""

    domain: str
    name: str
    value: str
    placeholder: str


class EgressPolicy(Struct, frozen=True, kw_only=True):
    """The network policy of a box (sandbox environment). ``domains``: host names in lower case that
    the box may reach. Subdomains are not included. ``secrets``: the secrets for requests to these
    domains."""

    domains: frozenset[str]
    secrets: tuple[BoxSecret, ...] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables for code in the box. Each variable contains a placeholder
        instead of a secret. The proxy replaces the placeholder with the secret."""
        return {secret.name: secret.placeholder for secret in self.secrets}

    def insert_secrets(self, domain: str, text: str) -> str:
        """Replace the placeholders of secrets in ``text``, which is a part of a request to
        ``domain``, and return the new text. Only the secrets of this domain are inserted."""
        for secret in self.secrets:
            if secret.domain == domain:
                text = text.replace(secret.placeholder, secret.value)
        return text
