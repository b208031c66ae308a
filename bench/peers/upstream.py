"""A scripted upstream that costs next to nothing: Chat Completions and the Responses API.

``python -m bench.peers.upstream`` prints its port. The input tokens that it reports are the number
of messages or items that it was sent: they show whether a server has restored a conversation. An
answer has as many words as the request allows tokens. A request that contains the word ``slowly``
gets a word every tenth of a second. A request with tools gets a call, until it contains the results
of ``CALLS`` calls or the text ``no call``.

With ``--at-once``, an answer is sent in a single write, so that a server does the same work for
each of them. By default, each event is a write, as engines do it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from typing import Any

MODEL = "scripted"
WORDS, SLOW_WORDS = 8, 20
_PAUSE_S = 0.1
CALLS = 2
_FUNCTION, _ARGUMENTS = "get_weather", '{"city":"Rome"}'


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


def _chat_call(number: int) -> dict[str, Any]:
    function = {"name": _FUNCTION, "arguments": _ARGUMENTS}
    return {"index": 0, "id": f"call_{number}", "type": "function", "function": function}


def _chat_call_reply(number: int, messages: int) -> dict[str, Any]:
    reply = _chat_reply(messages, 0)
    message = {"role": "assistant", "content": None, "tool_calls": [_chat_call(number)]}
    reply["choices"] = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    return reply


def _chat_call_events(number: int, messages: int) -> list[bytes]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    delta = {"role": "assistant", "content": None, "tool_calls": [_chat_call(number)]}
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {**head, "choices": [], "usage": _usage(messages, 1)},
    ]
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    return [*events, b"data: [DONE]\n\n"]


def _response_call(number: int, messages: int) -> dict[str, Any]:
    response = _response(number, messages, 1, "completed")
    item = {"type": "function_call", "id": f"fc_{number:032x}", "call_id": f"call_{number}"}
    item |= {"name": _FUNCTION, "arguments": _ARGUMENTS, "status": "completed"}
    return {**response, "output": [item]}


def _response_call_events(number: int, messages: int) -> list[bytes]:
    ended = _response_call(number, messages)
    item = ended["output"][0]
    started = _response(number, messages, 1, "in_progress")
    place = {"item_id": item["id"], "output_index": 0}
    shell = {**item, "status": "in_progress", "arguments": ""}
    return _framed(
        [
            {"type": "response.created", "response": started},
            {"type": "response.in_progress", "response": started},
            {"type": "response.output_item.added", "output_index": 0, "item": shell},
            {"type": "response.function_call_arguments.delta", **place, "delta": _ARGUMENTS},
            {"type": "response.function_call_arguments.done", **place, "arguments": _ARGUMENTS},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": ended},
        ]
    )


def _framed(events: list[dict[str, Any]]) -> list[bytes]:
    return [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': at})}\n\n".encode()
        for at, event in enumerate(events)
    ]


def _response(number: int, messages: int, words: int, status: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": " word" * words, "annotations": [], "logprobs": []}
    item: dict[str, Any] = {"id": f"msg_{number:032x}", "type": "message", "role": "assistant"}
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
    return _framed(events)


def _reply(number: int, given: int, words: int, *, is_chat: bool, calls: bool) -> dict[str, Any]:
    """The answer to a request that is not streamed."""
    if calls:
        return _chat_call_reply(number, given) if is_chat else _response_call(number, given)
    return _chat_reply(given, words) if is_chat else _response(number, given, words, "completed")


def _events(number: int, given: int, words: int, *, is_chat: bool, calls: bool) -> list[bytes]:
    if calls:
        return (_chat_call_events if is_chat else _response_call_events)(number, given)
    return _chat_events(given, words) if is_chat else _response_events(number, given, words)


def _results(given: Any) -> int:
    """The number of results of calls in a request."""
    return sum(
        each.get("role") == "tool" or each.get("type") == "function_call_output"
        for each in given
        if isinstance(each, dict)
    )


class ScriptedUpstream(asyncio.Protocol):
    """HTTP/1.1. ``at_once``: send an answer in one write."""

    requests = 0

    def __init__(self, *, at_once: bool = False) -> None:
        self._at_once = at_once
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
        ScriptedUpstream.requests += 1
        request = json.loads(body)
        given = request.get("input", request.get("messages", ()))
        messages = 1 if isinstance(given, str) else len(given)
        is_slow = b"slowly" in body
        words, pause_s = (SLOW_WORDS, _PAUSE_S) if is_slow else (WORDS, 0.0)
        for limit in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            words = request.get(limit) or words
        is_chat = b"/chat/completions" in head.split(b"\r\n", 1)[0]
        calls = bool(request.get("tools")) and _results(given) < CALLS and b"no call" not in body
        number = ScriptedUpstream.requests
        if not request.get("stream"):
            self._send_json(_reply(number, messages, words, is_chat=is_chat, calls=calls))
            return
        events = _events(number, messages, words, is_chat=is_chat, calls=calls)
        start = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        start += b"transfer-encoding: chunked\r\n\r\n"
        if self._at_once and not pause_s:
            self._transport.write(start + b"".join(map(_chunk, [*events, b""])))
            return
        self._transport.write(start)
        self._write_events([*events, b""], pause_s)

    def _write_events(self, events: list[bytes], pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        for at, event in enumerate(events):
            self._transport.write(_chunk(event))
            if pause_s and event:
                loop.call_later(pause_s, self._write_events, events[at + 1 :], pause_s)
                return

    def _send_json(self, value: object) -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self._transport.write(head.encode() + b"\r\n\r\n" + body)


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


async def _serve(*, at_once: bool) -> None:
    create = partial(ScriptedUpstream, at_once=at_once)
    server = await asyncio.get_running_loop().create_server(create, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(at_once="--at-once" in sys.argv))
