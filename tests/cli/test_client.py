"""The HTTP client of the commands."""

from __future__ import annotations

import io
import socket
import threading
from typing import Any

import pytest

from antiphon.cli.client import RequestFailed, Server


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


@pytest.mark.parametrize(
    "answer", [b"content-length: 5\r\n\r\nabc", b"transfer-encoding: chunked\r\n\r\n5\r\nabc"]
)
def test_incomplete_answer_is_a_failed_request(answer: bytes) -> None:
    """For example, because a proxy ends: the copied file would be shorter than the data."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n" + answer)

        server = threading.Thread(target=serve)
        server.start()
        file = io.BytesIO()
        with pytest.raises(RequestFailed, match="answer is incomplete"):
            Server(f"127.0.0.1:{listener.getsockname()[1]}").copy("/antiphon/export", file)
        server.join(60)
    assert file.getvalue() in (b"", b"abc")
