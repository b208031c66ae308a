"""Forwards connections from a port inside the box (sandbox environment) to the socket of the proxy
outside the box.

The forwarder is a separate process. If code in the box kills it or disturbs it, the box only loses
its network.
"""

from __future__ import annotations

import select
import socket
import threading

#: The socket of the proxy. It is in a folder that the server shares with the box. The box can only
#: read this folder.
PROXY_SOCKET = "/run/network/proxy"


def listen(port: int) -> socket.socket:
    """Return a socket that listens at a local port inside the box."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener


def forward(listener: socket.socket) -> None:
    """Accept connections at ``listener`` and forward them to the proxy. This function never
    returns."""
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
