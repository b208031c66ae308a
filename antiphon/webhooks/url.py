"""Which URL webhooks may be sent to. What it means when they are sent, the socket checks."""

from __future__ import annotations

from urllib.parse import urlsplit

from antiphon.errors import SetupError
from antiphon.security.ssrf import is_ip_address, is_public

__all__ = ["check_url"]


def check_url(url: str, *, private: bool) -> None:
    """Raises ``SetupError`` for a URL that nothing can be sent to safely. ``private``: addresses
    of this machine and its network are allowed, and ``http`` with them."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SetupError(f"webhook_url is not a URL: {error}.") from None
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        raise SetupError(f"webhook_url must begin with https://, not {parts.scheme or 'nothing'}.")
    if not host or port == 0 or parts.username is not None or parts.password is not None:
        raise SetupError("webhook_url must name a host, and no user or password.")
    if not private and is_ip_address(host) and not is_public(host):
        raise SetupError(f"webhook_url must not be a private address: {host}.")
