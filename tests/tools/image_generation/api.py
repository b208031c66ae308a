"""A fake server of OpenAI's Images API that returns images of one colour, as JSON or as a stream.

Its shapes are those of OpenAI's types (``ImagesResponse``, ``ImageGenStreamEvent``).
"""

from __future__ import annotations

import asyncio
import base64
import json
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec import Struct, field

from tests.attachments.samples import png

USAGE = {
    "input_tokens": 12,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 12},
    "output_tokens": 30,
    "output_tokens_details": {"image_tokens": 30, "text_tokens": 0},
    "total_tokens": 42,
}
_MODERATED = {
    "error": {
        "message": "Your request was rejected by the safety system.",
        "type": "image_generation_user_error",
        "param": None,
        "code": "moderation_blocked",
    }
}


class RecordedRequest(Struct):
    """A request: route, fields and, for a form, the files as (name, filename, type, bytes)."""

    route: str
    fields: dict[str, Any]
    files: list[tuple[str, str, str, bytes]]
    key: str | None
    idempotency_key: str | None = None


class FakeImagesApi(Struct):
    """The state of the server.

    ``script``: the behavior for each request; the last entry repeats. An entry is ``paint``,
    ``url``, ``hang``, ``break``, ``garbage``, ``nothing``, ``moderate``, ``error``, or a
    status. A prompt with ``forbidden`` is rejected by moderation; one with ``hang`` is never
    answered.
    """

    script: list[str | int] = field(default_factory=lambda: ["paint"])
    requests: list[RecordedRequest] = field(default_factory=list)
    url: str = ""
    abandoned_count: int = 0
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        recorded = await _record(request)
        self.requests.append(recorded)
        behavior = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        try:
            return await self._respond(behavior, recorded, request)
        except (asyncio.CancelledError, ConnectionError):
            self.abandoned_count += 1
            self.disconnected.set()
            raise

    async def _respond(
        self, behavior: str | int, recorded: RecordedRequest, request: web.Request
    ) -> web.StreamResponse:
        if isinstance(behavior, int):
            error = {"message": "No more of this.", "param": "size", "code": None}
            return web.json_response({"error": error}, status=behavior)
        if behavior == "hang" or "hang" in recorded.fields["prompt"]:
            await asyncio.Event().wait()
        if behavior == "moderate" or "forbidden" in recorded.fields["prompt"]:
            return web.json_response(_MODERATED, status=400)
        if behavior == "garbage":
            return web.json_response({"data": [{"b64_json": "!!"}]})
        if behavior == "nothing":
            return web.json_response({"created": 1, "data": []})
        if recorded.fields.get("stream"):
            return await self._stream_response(behavior, recorded, request)
        entry: dict[str, Any] = {"b64_json": _encode_image(recorded), "revised_prompt": "Revised."}
        if behavior == "url":
            entry = {"url": f"{self.url.removesuffix('/v1')}/made.png"}
        whole = {"created": 1, "data": [entry], "quality": "low", "usage": USAGE}
        return web.json_response({**whole, "background": "opaque", "output_format": "png"})

    async def _stream_response(
        self, behavior: str, recorded: RecordedRequest, request: web.Request
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        kind = "image_edit" if recorded.route == "edits" else "image_generation"
        common_fields = {"created_at": 1, "size": "8x6", "quality": "low", "background": "opaque"}

        async def send_event(name: str, **fields: Any) -> None:
            event = {"type": name, **common_fields, "output_format": "png", **fields}
            await response.write(f"event: {name}\ndata: {json.dumps(event)}\n\n".encode())

        for index in range(int(recorded.fields["partial_images"])):
            partial = base64.b64encode(png(8, 6, (index, 0, 0))).decode()
            await send_event(f"{kind}.partial_image", b64_json=partial, partial_image_index=index)
        if behavior == "break":
            assert request.transport is not None
            request.transport.abort()
        elif behavior == "error":
            await send_event("error", error=_MODERATED["error"])
        else:
            await send_event(f"{kind}.completed", b64_json=_encode_image(recorded), usage=USAGE)
        return response

    async def get_image(self, request: web.Request) -> web.Response:
        return web.Response(body=png(8, 6), content_type="image/png")


def _encode_image(recorded: RecordedRequest) -> str:
    color = (0, 200, 0) if recorded.route == "edits" else (200, 0, 0)
    width, height = recorded.fields.get("size", "8x6").split("x")
    return base64.b64encode(png(int(width), int(height), color)).decode()


async def _record(request: web.Request) -> RecordedRequest:
    route, key = request.path.rpartition("/")[2], request.headers.get("authorization")
    idempotency_key = request.headers.get("idempotency-key")
    if request.content_type == "application/json":
        return RecordedRequest(route, await request.json(), [], key, idempotency_key)
    fields, files = {}, []
    for name, value in (await request.post()).items():
        if isinstance(value, web.FileField):
            files.append((name, value.filename, value.content_type, value.file.read()))
        else:
            fields[name] = value
    return RecordedRequest(route, fields, files, key, idempotency_key)


@asynccontextmanager
async def serve_images_api(*script: str | int) -> AsyncIterator[FakeImagesApi]:
    """Run the server on a loopback port. Its ``url`` ends in ``/v1``."""
    api = FakeImagesApi(script=list(script) or ["paint"])
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/images/{route}", api.answer)
    app.router.add_get("/made.png", api.get_image)
    async with TestServer(app, host="127.0.0.1", handler_cancellation=True) as server:
        api.url = f"http://127.0.0.1:{server.port}/v1"
        yield api


@contextmanager
def serve_images_api_in_thread() -> Iterator[FakeImagesApi]:
    """Run the server in a thread, for tests without an event loop."""
    started: queue.Queue[tuple[FakeImagesApi, asyncio.AbstractEventLoop, asyncio.Event]] = (
        queue.Queue()
    )

    async def serve() -> None:
        async with serve_images_api() as api:
            stopping = asyncio.Event()
            started.put((api, asyncio.get_running_loop(), stopping))
            await stopping.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    api, loop, stopping = started.get(timeout=60)
    try:
        yield api
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(30)
