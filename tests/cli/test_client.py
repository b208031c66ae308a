"""The HTTP client of the commands."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from antiphon.cli.client import Server


@pytest.mark.parametrize(
    ("url", "port"),
    [("http://host", 80), ("https://host", 443), ("https://host:8443", 8443)],
)
def test_server_is_probed_at_the_default_port_of_its_scheme(
    url: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[Any] = []

    def refuse(address: Any, timeout: float) -> socket.socket:
        probed.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert not Server(url, None).is_listening()
    assert probed == [("host", port)]
