"""A transport and a client's protocol that record what they get."""

from __future__ import annotations

import asyncio

__all__ = ["Client", "Transport", "feed"]


class Transport(asyncio.Transport):
    """Records the written bytes, and whether ``abort`` was called. A test sets ``is_ended`` when
    the connection is lost."""

    is_aborted = is_ended = False
    written = b""

    def is_closing(self) -> bool:
        return self.is_ended

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.is_aborted = True


class Client(asyncio.Protocol):
    """Records the bytes and the calls that the client's own protocol gets."""

    def __init__(self) -> None:
        self.received = b""
        self.calls: list[str] = []

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.calls.append("eof_received")
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.calls.append("connection_lost")

    def pause_writing(self) -> None:
        self.calls.append("pause_writing")

    def resume_writing(self) -> None:
        self.calls.append("resume_writing")


def feed(protocol: asyncio.Protocol, data: bytes, cuts: set[int]) -> None:
    """Pass bytes to a protocol in pieces. ``cuts``: positions at which a new piece begins."""
    start = 0
    for end in (*sorted(cuts), len(data)):
        protocol.data_received(data[start:end])
        start = end
