"""The server in front of a nearly free scripted upstream, against requests sent to it directly."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from .load import Plan, load
from .process import FEW, running
from .table import Line, median

_USAGE = {"prompt_tokens": 9, "completion_tokens": FEW, "total_tokens": 9 + FEW}


def _chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"


def _pieces() -> list[bytes]:
    words = [_chunk({"content": " word"}) for _ in range(FEW)]
    usage = json.dumps({"object": "chat.completion.chunk", "choices": [], "usage": _USAGE})
    end = f"data: {usage}\n\ndata: [DONE]\n\n".encode()
    return [_chunk({"role": "assistant", "content": ""}), *words, _chunk({}, "stop"), end]


def _http_chunk(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


class _Upstream(asyncio.Protocol):
    """Chat Completions over HTTP/1.1, one write per event, as engines do it."""

    def __init__(self) -> None:
        self._buffer = b""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked"
        self._stream = [head + b"\r\n\r\n", *map(_http_chunk, _pieces()), b"0\r\n\r\n"]
        message = {"role": "assistant", "content": " word" * FEW}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self._plain = _json({"object": "chat.completion", "choices": [choice], "usage": _USAGE})
        self._models = _json({"data": [{"id": "m", "object": "model", "owned_by": "nobody"}]})

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        if len(body) < length:
            return
        self._buffer = body[length:]
        transport: asyncio.WriteTransport = self._transport  # type: ignore[assignment]
        if head.startswith(b"GET"):
            transport.write(self._models)
        elif b'"stream":true' in body.replace(b" ", b""):
            for piece in self._stream:
                transport.write(piece)
        else:
            transport.write(self._plain)


def _json(value: object) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def play() -> None:
    """Print the port and serve until the process is terminated."""
    server = await asyncio.get_running_loop().create_server(_Upstream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def chat() -> Iterator[Line]:
    """Short answers of a Chat Completions upstream, through the server and directly."""
    with running("upstream") as bare, running("chat", f"http://127.0.0.1:{bare.port}") as ours:
        for name, stream, target in (("plain", False, 1500), ("streamed", True, 1000)):
            rates: dict[str, list[float]] = {"through": [], "direct": []}
            request_body = {"model": "chat", "input": "hi", "stream": stream, "store": True}
            plain = {"model": "m", "messages": [], "stream": stream}
            for kind, port, body in (
                ("through", ours.port, request_body),
                ("direct", bare.port, plain),
            ) * 4:
                plan = Plan(port=port, body=json.dumps(body), connections=16, requests=2000)
                rates[kind].append(plan.requests / load(plan).wall_s)
            through, direct = (median(rates[kind][1:]) for kind in ("through", "direct"))
            yield Line(
                what=f"upstream: {name} requests a second, 16 connections, stored",
                value=through,
                unit="/s",
                at_least=target,
                note=f"{direct:.0f} without us",
            )
        rss = ours.rss_bytes / 2**20
        yield Line(what="upstream: memory after that", value=rss, unit="MB", at_most=100)


_REQUESTS = 40


def first_token() -> Iterator[Line]:
    """Milliseconds that the server adds to the first token of a real llama-server."""
    from tests.real.embedded_model import smollm2

    script = Path(__file__).parents[1] / "tests" / "upstream" / "llama_server.py"
    command = [sys.executable, str(script), str(smollm2())]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stdin is not None
        url = process.stdout.readline().decode().strip()
        with running("ids", url) as ours:
            body = json.dumps(
                {
                    "model": "ids",
                    "input": "hi",
                    "stream": True,
                    "store": False,
                    "max_output_tokens": 2,
                }
            )
            plan = Plan(port=ours.port, body=body, connections=1, requests=_REQUESTS)
            load(plan)
            through, direct = [], []
            prompt = _prompt(url)
            for _ in range(3):
                through += load(plan).first_s
                direct += [_direct(url, prompt) for _ in range(_REQUESTS)]
        process.stdin.close()
    late, early = (median(each) * 1000 for each in (through, direct))
    yield Line(
        what="upstream: what we add to a first token",
        value=late - early,
        unit="ms",
        at_most=5,
        note=f"{late:.1f} to {early:.1f} ms",
    )


def _prompt(url: str) -> str:
    """Render the question with the server's template."""
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    request = urllib.request.Request(f"{url}/apply-template", body)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["prompt"])


def _direct(url: str, prompt: str) -> float:
    """Return seconds to the first token of the same, cached prompt."""
    body = {"prompt": prompt, "n_predict": 2, "stream": True, "cache_prompt": True}
    request = urllib.request.Request(f"{url}/completion", json.dumps(body).encode())
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.readline()
        took = time.perf_counter() - started
        answer.read()
    return took
