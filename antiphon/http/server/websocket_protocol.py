"""WebSockets for an ASGI app, on the protocol of the package ``websockets``, which does no I/O."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from starlette.types import Message
from websockets.datastructures import Headers
from websockets.exceptions import InvalidState
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from .connections import OpenConnections, address_of

#: Seconds between the pings of a WebSocket, and seconds a pong may take.
_PING_S = 20.0
#: Seconds that a client may take to answer the end of a WebSocket.
_CLOSE_S = 10.0
_ABNORMAL, _NOT_UTF8, _RESTART = 1006, 1007, 1012

_ASGI = {"version": "3.0", "spec_version": "2.4"}


class WebSocketProtocol(asyncio.Protocol):
    """One WebSocket. Nothing more is read while a message waits for the app."""

    def __init__(self, connections: OpenConnections) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        # A small window, because each connection has one.
        deflate = ServerPerMessageDeflateFactory(
            server_max_window_bits=12, client_max_window_bits=12, compress_settings={"memLevel": 5}
        )
        self._protocol = ServerProtocol(extensions=[deflate], max_size=connections.max_frame_bytes)
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        #: Completes when more can be written. None: it can be written now.
        self._writable: asyncio.Future[None] | None = None
        self._is_reading = True
        #: The fragments of a message so far, and whether they are text.
        self._fragments: list[bytes] = []
        self._is_text = False
        self._handshake: Response | None = None
        #: Status, headers and body of an HTTP response that refuses the WebSocket.
        self._refusal: tuple[int, Iterable[tuple[bytes, bytes]], list[bytes]] | None = None
        self._is_open = self._is_over = self._is_lost = False
        self._timer: asyncio.TimerHandle | None = None
        self._ping: bytes | None = None

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

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._on_request(event)
            elif isinstance(event, Frame):
                self._on_frame(event)
        self._flush()
        if self._protocol.close_expected():
            self._finish()

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
        if self._protocol.close_rcvd is not None:
            self._transport.close()  # clients wait for the server to do it (RFC 6455, 7.1.1)
        else:
            self._set_timer(_CLOSE_S)

    def _end(self, message: Message) -> None:
        self._is_over = True
        self._messages.put_nowait(message)
        self._resume_reading()  # for the client's last frame

    def _resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()

    # --- the client ------------------------------------------------------------------------------

    def _on_request(self, request: Request) -> None:
        self._handshake = self._protocol.accept(request)
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
            "extensions": {"websocket.http.response": {}},
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
        if frame.opcode is Opcode.PONG:
            if bytes(frame.data) == self._ping:
                self._ping = None
                self._set_timer(_PING_S)
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            if frame.opcode is not Opcode.CONT:
                self._is_text, self._fragments = frame.opcode is Opcode.TEXT, []
            self._fragments.append(bytes(frame.data))
            if frame.fin and not self._is_over:
                self._on_message(b"".join(self._fragments))

    def _on_message(self, content: bytes) -> None:
        self._fragments = []
        if not self._is_text:
            message = {"type": "websocket.receive", "bytes": content}
        else:
            try:
                message = {"type": "websocket.receive", "text": content.decode()}
            except UnicodeDecodeError:
                self._protocol.fail(_NOT_UTF8)
                return
        self._messages.put_nowait(message)
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    # --- pings -----------------------------------------------------------------------------------

    def _set_timer(self, delay: float | None) -> None:
        """Call ``_on_timer`` after ``delay`` seconds, and not at another time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay is None else self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        """Send a ping. If the last one was not answered, or the WebSocket is over, close the
        connection."""
        if self._is_over or self._transport.is_closing():
            self._transport.close()
        elif self._ping is not None:
            self._protocol.fail(1011, "keepalive ping timeout")
            self._flush()
            self._end({"type": "websocket.disconnect", "code": _ABNORMAL})
            self._transport.abort()  # a client that receives nothing holds up a usual end
        else:
            self._ping = secrets.token_bytes(4)
            self._protocol.send_ping(self._ping)
            self._flush()
            self._set_timer(_PING_S)

    # --- the app ---------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Return the next message for the app."""
        message = await self._messages.get()
        if self._messages.empty() and not self._is_lost:
            self._resume_reading()
        return message

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
                self._protocol.send_close(code, reason)
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
