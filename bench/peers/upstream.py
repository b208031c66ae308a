"""A scripted upstream that costs next to nothing: Chat Completions and the Responses API.

``python -m bench.peers.upstream`` prints its port. The input tokens that it reports are the number
of messages or items that it was sent: they show whether a server has restored a conversation. A
request that contains the word ``slowly`` gets a word every tenth of a second.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

__all__ = ["MODEL", "SLOW_WORDS", "WORDS"]

MODEL = "scripted"
WORDS, SLOW_WORDS = 8, 20
_PAUSE_S = 0.1


def _usage(messages: int, words: int) -> dict[str, Any]:
    return {"prompt_tokens": messages, "completion_tokens": words, "total_tokens": messages + words}


def _chat_events(messages: int, words: int) -> list[bytes]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}

    def chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"

    pieces = [chunk({"role": "assistant", "content": ""})]
    pieces += [chunk({"content": " word"}) for _ in range(words)]
    usage = json.dumps({**head, "choices": [], "usage": _usage(messages, words)})
    return [*pieces, chunk({}, "stop") + f"data: {usage}\n\ndata: [DONE]\n\n".encode()]


def _chat_reply(messages: int, words: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": " word" * words}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
    return {**head, "choices": [choice], "usage": _usage(messages, words)}


def _response(number: int, messages: int, words: int, status: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": " word" * words, "annotations": [], "logprobs": []}
    item = {"id": f"msg_{number:032x}", "type": "message", "role": "assistant"}
    item |= {"status": "completed", "content": [part]}
    usage = {"input_tokens": messages, "output_tokens": words, "total_tokens": messages + words}
    usage["input_tokens_details"] = {"cached_tokens": 0}  # type: ignore[assignment]
    usage["output_tokens_details"] = {"reasoning_tokens": 0}  # type: ignore[assignment]
    is_done = status == "completed"
    return {
        "id": f"resp_{number:032x}",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": MODEL,
        "output": [item] if is_done else [],
        "usage": usage if is_done else None,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }


def _response_events(number: int, messages: int, words: int) -> list[bytes]:
    started = _response(number, messages, words, "in_progress")
    ended = _response(number, messages, words, "completed")
    item = ended["output"][0]
    part = item["content"][0]
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    shell = {**item, "status": "in_progress", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
        {"type": "response.output_item.added", "output_index": 0, "item": shell},
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
    ]
    delta = {"type": "response.output_text.delta", **place, "delta": " word", "logprobs": []}
    events += [delta] * words
    events += [
        {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": ended},
    ]
    return [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': at})}\n\n".encode()
        for at, event in enumerate(events)
    ]


class _Upstream(asyncio.Protocol):
    """HTTP/1.1, one write per event, as engines do it."""

    requests = 0

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        if found and len(body) >= length:
            self._buffer = body[length:]
            self._answer(head, body[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"POST"):
            models = [{"id": MODEL, "object": "model", "created": 1, "owned_by": "nobody"}]
            return self._send_json({"object": "list", "data": models})
        _Upstream.requests += 1
        request = json.loads(body)
        given = request.get("input", request.get("messages", ()))
        messages = 1 if isinstance(given, str) else len(given)
        is_slow = b"slowly" in body
        words, pause_s = (SLOW_WORDS, _PAUSE_S) if is_slow else (WORDS, 0.0)
        is_chat = b"/chat/completions" in head.split(b"\r\n", 1)[0]
        if not request.get("stream"):
            reply = _response(_Upstream.requests, messages, words, "completed")
            self._send_json(_chat_reply(messages, words) if is_chat else reply)
            return
        events = (
            _chat_events(messages, words)
            if is_chat
            else _response_events(_Upstream.requests, messages, words)
        )
        start = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        self._transport.write(start + b"transfer-encoding: chunked\r\n\r\n")
        self._write_events([*events, b""], pause_s)

    def _write_events(self, events: list[bytes], pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        for at, event in enumerate(events):
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
            if pause_s and event:
                loop.call_later(pause_s, self._write_events, events[at + 1 :], pause_s)
                return

    def _send_json(self, value: object) -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self._transport.write(head.encode() + b"\r\n\r\n" + body)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Upstream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
