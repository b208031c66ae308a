"""WebSockets for an ASGI app, on the protocol of the package ``websockets``, which does no I/O.

Before a large message arrives or is decompressed, a function of the app holds memory for it.
Until it returns, nothing more is received.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Generator, Iterable
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.types import Message
from websockets.datastructures import Headers
from websockets.exceptions import InvalidState
from websockets.extensions import Extension
from websockets.extensions.permessage_deflate import (
    PerMessageDeflate,
    ServerPerMessageDeflateFactory,
)
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.streams import StreamReader
from websockets.typing import ExtensionName

from antiphon.http.requests.body import HOLD_MESSAGE, SMALL_BYTES

from .connections import OpenConnections, address_of

#: Seconds between the pings of a WebSocket, and seconds a pong may take.
_PING_S = 20.0
#: Seconds that a client may take to answer the end of a WebSocket.
_CLOSE_S = 10.0
_PROTOCOL_ERROR, _ABNORMAL, _NOT_UTF8, _TOO_LARGE, _RESTART = 1002, 1006, 1007, 1009, 1012
#: What senders remove from the end of a compressed message (RFC 7692, section 7.2.1).
_DEFLATED_END = b"\x00\x00\xff\xff"

_ASGI = {"version": "3.0", "spec_version": "2.4"}


class _Reader(StreamReader):
    """The received bytes, and how many of them the parser waits for."""

    expected_bytes = 0

    def read_exact(self, n: int) -> Generator[None, None, bytearray]:
        self.expected_bytes = n
        content = yield from super().read_exact(n)
        self.expected_bytes = 0
        return content


class _Protocol(ServerProtocol):
    reader: _Reader

    def parse(self) -> Generator[None, None, None]:
        self.reader = _Reader()  # this is the start of the protocol
        yield from super().parse()


class _DeflatedFrame(Frame):
    """The first frame of a compressed message."""


class _Deflate(Extension):
    """Compresses what is sent, but leaves what is received compressed, because a few bytes can
    become a large message."""

    name = ExtensionName("permessage-deflate")

    def __init__(self, deflate: PerMessageDeflate) -> None:
        self._deflate = deflate

    def encode(self, frame: Frame) -> Frame:
        return self._deflate.encode(frame)

    def decode(self, frame: Frame, *, max_size: int | None = None) -> Frame:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY) and frame.rsv1:
            return _DeflatedFrame(frame.opcode, frame.data, frame.fin)
        return frame

    def inflater(self) -> Any:
        """Return the decompressor for the next message."""
        if self._deflate.remote_no_context_takeover:
            return zlib.decompressobj(wbits=-self._deflate.remote_max_window_bits)
        return self._deflate.decoder


class _Content(NamedTuple):
    """The content of a received message. ``inflater``: decompresses it, if it is compressed."""

    data: bytes | bytearray
    is_text: bool
    inflater: Any


class WebSocketProtocol(asyncio.BufferedProtocol):
    """One WebSocket. Nothing more is read until the app asks for the next message."""

    def __init__(self, connections: OpenConnections) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        # A small window, because each connection has one.
        deflate = ServerPerMessageDeflateFactory(
            server_max_window_bits=12, client_max_window_bits=12, compress_settings={"memLevel": 5}
        )
        self._protocol = _Protocol(extensions=[deflate], max_size=connections.max_frame_bytes)
        #: Messages for the app, contents of the client, and sizes for which memory is needed.
        self._messages: asyncio.Queue[Message | _Content | int] = asyncio.Queue()
        #: Completes when more can be written. None: it can be written now.
        self._writable: asyncio.Future[None] | None = None
        self._is_reading = True
        #: The message so far, and whether it is text.
        self._fragments = bytearray()
        self._is_text = False
        #: Decompresses the message. None: it is not compressed.
        self._inflater: Any = None
        self._deflate: _Deflate | None = None
        #: The memory that the message that arrives needs.
        self._needed_bytes = 0
        self._extensions: dict[str, Any] = {"websocket.http.response": {}}
        self._handshake: Response | None = None
        #: Status, headers and body of an HTTP response that refuses the WebSocket.
        self._refusal: tuple[int, Iterable[tuple[bytes, bytes]], list[bytes]] | None = None
        self._is_open = self._is_over = self._is_lost = False
        self._timer: asyncio.TimerHandle | None = None
        #: What the client still has to send before the next ping: a pong, or a part of its message.
        self._owed_bytes = 0

    # --- the connection --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._is_lost = True
        self._set_timer(None)
        self._messages.put_nowait({"type": "websocket.disconnect", "code": _ABNORMAL})
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    def finish_request(self) -> None:
        """Go on: the runs of a WebSocket end with all others."""

    def stop_request(self) -> None:
        """Do nothing: ``shut_down`` has ended the WebSocket."""

    def shut_down(self) -> None:
        if self._is_open and not self._is_over:
            self._end({"type": "websocket.disconnect", "code": _RESTART})
            self._protocol.send_close(_RESTART)
            self._flush()
        self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connections.frame_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._connections.frame_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        self._owed_bytes -= len(data)
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._on_request(event)
            elif isinstance(event, Frame):
                self._on_frame(event)
        self._flush()
        if self._protocol.close_expected():
            self._finish()
        elif (needed := self._arriving_bytes()) > max(SMALL_BYTES, self._needed_bytes):
            self._needed_bytes = needed
            self._put(needed)

    def _arriving_bytes(self) -> int:
        """Return the size of the message that arrives. Fragments do not tell it."""
        expected = self._protocol.reader.expected_bytes
        is_large = len(self._fragments) + expected > SMALL_BYTES
        return self._connections.max_frame_bytes if is_large and self._fragments else expected

    def _put(self, item: _Content | int) -> None:
        """Let the app receive something, and read nothing until it asks for more."""
        if not self._is_over:
            self._messages.put_nowait(item)
            if self._is_reading:
                self._is_reading = False
                self._transport.pause_reading()

    def _flush(self) -> None:
        """Write what the protocol has to send."""
        if not self._transport.is_closing() and (data := b"".join(self._protocol.data_to_send())):
            self._transport.write(data)

    def _finish(self) -> None:
        """Close the connection if the client has sent its closing frame, too. Else wait for a short
        time until it does."""
        if not self._is_over:
            code = self._protocol.close_code or _ABNORMAL
            self._end({"type": "websocket.disconnect", "code": code})
            self._set_timer(_CLOSE_S)
        if self._protocol.close_rcvd is not None:
            self._transport.close()  # clients wait for the server to do it (RFC 6455, 7.1.1)

    def _end(self, message: Message) -> None:
        self._is_over = True
        self._messages.put_nowait(message)
        self._resume_reading()  # for the client's last frame

    def _resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._owed_bytes = 0  # what it has sent was not read
            self._transport.resume_reading()

    # --- the client ------------------------------------------------------------------------------

    def _on_request(self, request: Request) -> None:
        self._handshake = self._protocol.accept(request)
        for each in self._protocol.extensions:
            assert isinstance(each, PerMessageDeflate)
            self._deflate = _Deflate(each)
            self._protocol.extensions = [self._deflate]
        if self._handshake.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._is_over = True
            self._protocol.send_response(self._handshake)
            self._flush()
            self._transport.close()
            return
        path, _, query = request.path.partition("?")
        protocols = ",".join(request.headers.get_all("Sec-WebSocket-Protocol"))
        scope: dict[str, Any] = {
            "type": "websocket",
            "asgi": _ASGI,
            "http_version": "1.1",
            "scheme": "ws",
            "server": address_of(self._transport.get_extra_info("sockname")),
            "client": address_of(self._transport.get_extra_info("peername")),
            "root_path": "",
            "path": unquote(path),
            "raw_path": path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "headers": [
                (name.lower().encode("ascii"), value.encode("latin-1", "surrogateescape"))
                for name, value in request.headers.raw_items()
            ],
            "subprotocols": [each.strip() for each in protocols.split(",") if each.strip()],
            "extensions": self._extensions,
        }
        self._messages.put_nowait({"type": "websocket.connect"})
        self._connections.start(self._run(scope))

    async def _run(self, scope: dict[str, Any]) -> None:
        try:
            await self._connections.app(scope, self.receive, self.send)
        finally:
            if not self._is_over:  # the app has failed; it ends WebSockets itself
                self._transport.close()

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT) or self._is_over:
            return
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
            is_deflated = isinstance(frame, _DeflatedFrame)
            self._inflater = self._deflate.inflater() if is_deflated and self._deflate else None
        self._fragments += frame.data
        frame.data = b""  # the parser refers to the frame until the next one arrives
        if frame.fin:
            data, self._fragments = self._fragments, bytearray()
            self._needed_bytes = 0
            self._put(_Content(data, self._is_text, self._inflater))

    # --- pings -----------------------------------------------------------------------------------

    def _set_timer(self, delay: float | None) -> None:
        """Call ``_on_timer`` after ``delay`` seconds, and not at another time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay is None else self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        """Send a ping. If the client has sent nothing since the last one, or too little of a large
        message, or the WebSocket is over, close the connection."""
        if self._is_over or self._transport.is_closing():
            self._transport.close()
        elif self._owed_bytes > 0 and self._is_reading:
            is_slow = self._needed_bytes > 0
            what = "the message arrives too slowly" if is_slow else "keepalive ping timeout"
            self._protocol.fail(1011, what)
            self._flush()
            self._end({"type": "websocket.disconnect", "code": _ABNORMAL})
            self._transport.abort()  # a client that receives nothing holds up a usual end
        else:
            rate = self._connections.limits.body_bytes_per_s if self._needed_bytes else 0.0
            self._owed_bytes = max(1, int(rate * _PING_S))
            self._protocol.send_ping(b"")
            self._flush()
            self._set_timer(_PING_S)

    # --- the app ---------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Return the next message for the app."""
        while True:
            if self._messages.empty() and not self._is_lost:
                self._resume_reading()
            item = await self._messages.get()
            if isinstance(item, int):
                await self._hold_memory(item)
            elif isinstance(item, _Content):
                return await self._read(item)
            else:
                return item

    async def _hold_memory(self, size: int) -> None:
        if (hold := self._extensions.get(HOLD_MESSAGE)) is not None:
            await hold(size)

    async def _read(self, content: _Content) -> Message:
        """Return the message for the app. If it is invalid, end the WebSocket."""
        data, is_text, inflater = content
        try:
            if inflater is not None:
                data = await self._inflate(data, inflater)
            if len(data) > self._connections.max_frame_bytes:
                return self._fail(_TOO_LARGE)
            value = {"text": data.decode()} if is_text else {"bytes": bytes(data)}
        except zlib.error:
            return self._fail(_PROTOCOL_ERROR)
        except UnicodeDecodeError:
            return self._fail(_NOT_UTF8)
        return {"type": "websocket.receive", **value}

    async def _inflate(self, data: bytes | bytearray, inflater: Any) -> bytes:
        """Decompress a message. If it becomes large, hold memory before, and do it in a thread.
        The result has at most one byte more than a message may have. Raises ``zlib.error``."""
        limit = self._connections.max_frame_bytes
        inflated: bytes = inflater.decompress(data + _DEFLATED_END, min(SMALL_BYTES, limit) + 1)
        if SMALL_BYTES < len(inflated) <= limit:
            await self._hold_memory(limit)
            rest, max_bytes = inflater.unconsumed_tail, limit + 1 - len(inflated)
            inflated += await asyncio.to_thread(inflater.decompress, rest, max_bytes)
        if inflater.eof:
            raise zlib.error("the client has ended the compression")
        return inflated

    def _fail(self, code: int) -> Message:
        """End the WebSocket because of what the client has sent."""
        self._protocol.fail(code)
        self._flush()
        if not self._is_over:
            self._finish()
        return {"type": "websocket.disconnect", "code": code}

    async def send(self, message: Message) -> None:
        """Send a message of the app. Waits for a slow client. Raises ``OSError`` if the client has
        disconnected."""
        if self._writable is not None:
            await self._connections.wait_for_client(self._writable, self._transport)
        if self._is_lost:
            raise OSError("the client has disconnected")
        try:
            self._send(message)
        except InvalidState:
            raise OSError("the client has disconnected") from None
        self._flush()

    def _send(self, message: Message) -> None:
        match message["type"]:
            case "websocket.accept":
                self._accept(message)
            case "websocket.send":
                if (text := message.get("text")) is not None:
                    self._protocol.send_text(text.encode())
                else:
                    self._protocol.send_binary(message["bytes"])
            case "websocket.close" if self._is_open:
                code, reason = message.get("code", 1000), message.get("reason") or ""
                # After ``fail``, the rest of a message is not kept.
                close = self._protocol.fail if self._needed_bytes else self._protocol.send_close
                close(code, reason)
                self._end({"type": "websocket.disconnect", "code": code, "reason": reason})
                self._set_timer(_CLOSE_S)
            case "websocket.close":
                self._refuse(HTTPStatus.FORBIDDEN, (), b"")
            case "websocket.http.response.start":
                self._refusal = message["status"], message.get("headers", ()), []
            case "websocket.http.response.body":
                assert self._refusal is not None
                status, headers, pieces = self._refusal
                pieces.append(message.get("body", b""))
                if not message.get("more_body", False):
                    self._refuse(status, headers, b"".join(pieces))

    def _accept(self, message: Message) -> None:
        assert self._handshake is not None
        for name, value in message.get("headers", ()):
            self._handshake.headers[name.decode("latin-1")] = value.decode("latin-1")
        if subprotocol := message.get("subprotocol"):
            self._handshake.headers["Sec-WebSocket-Protocol"] = subprotocol
        self._is_open = True
        self._protocol.send_response(self._handshake)
        self._set_timer(_PING_S)

    def _refuse(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Answer the handshake with an HTTP response."""
        texts = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        fields = Headers(texts)
        fields.setdefault("Connection", "close")
        fields.setdefault("Content-Length", str(len(body)))
        self._protocol.send_response(Response(status, HTTPStatus(status).phrase, fields, body))
        self._flush()
        self._end({"type": "websocket.disconnect", "code": _ABNORMAL})
        self._transport.close()
