"""A network namespace with loopback alone.

``python -m tests.offline PROGRAM ARGUMENT…`` runs a program in a new one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_GET_FLAGS, _SET_FLAGS, _UP, _UP_AND_RUNNING = 0x8913, 0x8914, 0x1, 0x41


def block_network() -> None:
    """Move this process, and all that it starts, to a new namespace. Raises ``OSError`` where the
    system does not allow it. Threads that run already stay where they are."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NET) != 0 and libc.unshare(_NEW_USER | _NEW_NET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))


def has_only_loopback() -> bool:
    """Return whether no other machine can reach this process: no other interface is up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:

        def is_up(name: str) -> bool:
            request = struct.pack("16sh14x", name.encode(), 0)
            answer = fcntl.ioctl(any_socket, _GET_FLAGS, request)
            return bool(struct.unpack("16sh14x", answer)[1] & _UP)

        return [name for _, name in socket.if_nameindex() if is_up(name)] == ["lo"]


if __name__ == "__main__":
    block_network()
    os.execvp(sys.argv[1], sys.argv[1:])
