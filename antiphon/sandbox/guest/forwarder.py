"""Forwards connections from a port of the box to the socket of the proxy outside of the box.

The forwarder is a process of its own. If the code of the box kills or breaks it, the only effect is
that the box has no network.
"""

from __future__ import annotations

import select
import socket
import threading

__all__ = ["forward", "listen"]

#: The socket of the proxy, in a folder of the server that the box can only read.
PROXY_SOCKET = "/run/network/proxy"


def listen(port: int) -> socket.socket:
    """Listen at a port of the box."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener


def forward(listener: socket.socket) -> None:
    """Forward all connections. This function never returns."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_pass_on, args=(connection,), daemon=True).start()


def _pass_on(inner: socket.socket) -> None:
    outer = socket.socket(socket.AF_UNIX)
    try:
        outer.connect(PROXY_SOCKET)
        other = {inner: outer, outer: inner}
        reading = [inner, outer]
        while reading:
            for ready in select.select(reading, [], [])[0]:
                piece = ready.recv(1 << 16)
                if piece:
                    other[ready].sendall(piece)
                else:
                    reading.remove(ready)
                    other[ready].shutdown(socket.SHUT_WR)
                    if ready is outer:
                        return
    except OSError:
        pass
    finally:
        inner.close()
        outer.close()
