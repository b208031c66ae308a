"""The URLs of a server."""

from __future__ import annotations

from antiphon.config.settings import Settings

#: Values of ``host`` that mean all addresses of a machine → loopback address for the same machine.
EVERY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def address(host: str, port: int) -> str:
    """Return a URL for a server that listens on ``host``. The URL works on the server's own
    machine."""
    name = EVERY_ADDRESS.get(host, host).strip("[]")
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def peer_url(settings: Settings, port: int) -> str:
    """Return the URL at which other Antiphon servers with the same store can reach this server.
    Returns "" if the server listens on all addresses, because the server does not know which of
    these addresses others can reach."""
    return "" if settings.host in EVERY_ADDRESS else address(settings.host, port)
