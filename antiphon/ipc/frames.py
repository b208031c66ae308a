"""Frames over a stream socket. A frame is a message in MessagePack. Before each frame, its length
is sent in four bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Number of bytes before a frame that hold its length.
LENGTH_BYTES = 4
#: Largest size of a frame. It is larger than the largest permitted bundle or file.
_MAX_FRAME_BYTES = 2**31 - 1


def encode_length(frame: bytes) -> bytes:
    """Encode the length of a frame. Return the four bytes that are sent before the frame."""
    return len(frame).to_bytes(LENGTH_BYTES, "big")


def frame_length(prefix: bytes | bytearray) -> int:
    """Decode the length of a frame. ``prefix``: the four bytes that were received before the
    frame."""
    return int.from_bytes(prefix, "big")


class FrameConnection(asyncio.Protocol):
    """One end of a connection that sends and receives frames.

    - ``on_frame``: called with each received frame.
    - ``on_closed``: called once, when the connection ends.
    - ``on_open``: called with this object when the connection is open.

    All three are called on the event loop.
    """

    def __init__(
        self,
        on_frame: Callable[[bytes], None],
        on_closed: Callable[[], None] = lambda: None,
        on_open: Callable[[FrameConnection], None] = lambda connection: None,
    ) -> None:
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._on_open = on_open
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._resumed = asyncio.Event()
        self._resumed.set()

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that were passed to ``send`` and that the socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, frame: bytes) -> None:
        """Send a frame. The frame is dropped if the connection is closed."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines((encode_length(frame), frame))

    async def drain(self) -> None:
        """Wait until the other end has read most of the sent data, or until the connection is
        closed."""
        await self._resumed.wait()

    def close(self) -> None:
        """Close the connection after all data is sent."""
        if self._transport is not None:
            self._transport.close()

    # --- called by the event loop ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        while len(received) - start >= LENGTH_BYTES:
            length = frame_length(received[start : start + LENGTH_BYTES])
            end = start + LENGTH_BYTES + length
            if length > _MAX_FRAME_BYTES:
                self.close()
                return
            if len(received) < end:
                break
            self._on_frame(bytes(received[start + LENGTH_BYTES : end]))
            start = end
        del received[:start]

    def pause_writing(self) -> None:
        self._resumed.clear()

    def resume_writing(self) -> None:
        self._resumed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._resumed.set()
        self._on_closed()
