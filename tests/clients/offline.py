"""Cuts a process, and all it starts, off from every network but loopback."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

__all__ = ["block_network"]

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41


def block_network() -> None:
    """Raises ``OSError`` where the system does not allow it. Threads that run already stay where
    they are."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NET) != 0 and libc.unshare(_NEW_USER | _NEW_NET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))
