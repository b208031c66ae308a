"""An upstream of the Chat Completions API that answers well, or hangs, resets, refuses or lies."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from random import Random

UPSTREAM_TEXT = " ".join(f"part{number}" for number in range(30))
_BEHAVIOURS = (
    "answers", "answers", "answers", "hangs", "resets", "breaks off", "refuses", "is busy", "lies",
)  # fmt: skip
_HANG_S = 20.0


class Upstream:
    """One HTTP server. ``is_kind``: it always answers well."""

    def __init__(self, random: Random) -> None:
        self.port = 0
        self.is_kind = False
        self.counts = Counter[str]()
        self._random = random
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # asyncio's streams would report a cancelled handler as an error of their own.
        with suppress(OSError, asyncio.IncompleteReadError, ValueError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next(
                (
                    int(line.partition(":")[2])
                    for line in head.split("\r\n")
                    if line.lower().startswith("content-length:")
                ),
                0,
            )
            await reader.readexactly(length)
            await self._answer(head, writer)
        writer.transport.abort()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        if "/chat/completions" not in head:
            body = b'{"object": "list", "data": [{"id": "up", "object": "model"}]}'
            await _send(writer, _head(200, "application/json", len(body)) + body)
            return
        behaviour = "answers" if self.is_kind else self._random.choice(_BEHAVIOURS)
        self.counts[behaviour] += 1
        if behaviour == "hangs":
            await asyncio.sleep(_HANG_S)
            return
        if behaviour == "resets":
            return
        if behaviour in ("refuses", "is busy"):
            status = 500 if behaviour == "refuses" else 429
            body = b'{"error": {"message": "not now"}}'
            await _send(writer, _head(status, "application/json", len(body)) + body)
            return
        await _send(writer, _head(200, "text/event-stream"))
        words = UPSTREAM_TEXT.split(" ")
        for number, word in enumerate(words):
            if behaviour == "breaks off" and number == len(words) // 2:
                return
            if behaviour == "lies" and number == len(words) // 2:
                await _send(writer, b'data: {"choices": [{"delta": {"content": 7\n\n')
            text = word if number == 0 else f" {word}"
            await _send(writer, _chunk({"content": text}))
            await asyncio.sleep(0.01)
        await _send(writer, _chunk({}, finish="stop") + b"data: [DONE]\n\n")


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    data = {"id": "c", "object": "chat.completion.chunk", "model": "up", "choices": [choice]}
    return f"data: {json.dumps(data)}\n\n".encode()


def _head(status: int, kind: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"content-type: {kind}", "connection: close"]
    if length is not None:
        lines.append(f"content-length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()
