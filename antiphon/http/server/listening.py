"""Listening sockets, and the limit of open files."""

from __future__ import annotations

import errno
import socket
import sys
from contextlib import suppress

from antiphon.errors import SetupError

_BACKLOG = 2048

#: Limit of open files that the server sets if the system permits any number.
_MAX_FILES = 2**20

_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def raise_file_limit() -> None:
    """Raise this process's limit of open files to the maximum that the system permits.

    Every connection and every stream needs an open file. The common soft limit of 1,024 is too low
    for a busy server.
    """
    try:
        import resource
    except ImportError:  # not a Unix
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS permits less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bind(
    host: str, port: int, *further_ports: int, reuse_port: bool = False
) -> list[socket.socket]:
    """Open listening sockets on every address of ``host``, those of ``port`` first. With port 0,
    all sockets of this port get the same free port. Raises ``SetupError`` with a one-line message.

    Call this function before slow startup work. Clients that connect during this work then wait in
    the backlog and are not refused. ``reuse_port``: allow other sockets to bind the same port;
    Linux spreads the connections over all these sockets.
    """
    sockets: list[socket.socket] = []
    try:
        for each in (port, *further_ports):
            sockets += _bind_port(host, each, reuse_port)
    except SetupError:
        for listener in sockets:
            listener.close()
        raise
    return sockets


def _bind_port(host: str, port: int, reuse_port: bool) -> list[socket.socket]:
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise SetupError(f"cannot listen on {host}: {error.strerror or error}") from None
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
        chosen = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(_listener(family, (address[0], chosen, *address[2:]), reuse_port))
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno in _NO_SUCH_ADDRESS:
                absent = error  # "localhost" names ::1 even where there is no IPv6
                continue
            for listener in sockets:
                listener.close()
            raise SetupError(_bind_error(error, host, port)) from None
    if absent is not None and not sockets:
        raise SetupError(_bind_error(absent, host, port))
    return sockets


def _listener(family: int, address: tuple[object, ...], reuse_port: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # on Windows it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _bind_error(error: OSError | OverflowError, host: str, port: int) -> str:
    if isinstance(error, OverflowError):
        return f"port {port} is not between 0 and 65535"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: stop its server or choose another port"
    if error.errno == errno.EACCES:
        return f"this user may not open port {port} on {host}: choose a port above 1023"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
