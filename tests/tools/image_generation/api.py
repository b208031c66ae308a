"""A server of OpenAI's Images API that paints one colour: by JSON or streamed, base64 or URLs. Its
shapes are those of OpenAI's types (``ImagesResponse``, ``ImageGenStreamEvent``)."""

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

__all__ = ["USAGE", "Asked", "Studio", "studio", "studio_aside"]

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


class Asked(Struct):
    """A request: its route, its fields, and of a form the files: (name, filename, type, bytes)."""

    route: str
    fields: dict[str, Any]
    files: list[tuple[str, str, str, bytes]]
    key: str | None


class Studio(Struct):
    """``script``: what becomes of the requests, one after the other, the last one again and again;
    what is ``forbidden`` is moderated, and ``hang`` in a prompt takes for ever:
    ``paint``, ``url``, ``hang``, ``break``, ``garbage``, ``nothing``, ``moderate``, ``error``, or a
    status."""

    script: list[str | int] = field(default_factory=lambda: ["paint"])
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    left: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await _read(request)
        self.asked.append(asked)
        act = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        try:
            return await self._acted(act, asked, request)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            self.gone.set()
            raise

    async def _acted(
        self, act: str | int, asked: Asked, request: web.Request
    ) -> web.StreamResponse:
        if isinstance(act, int):
            error = {"message": "No more of this.", "param": "size", "code": None}
            return web.json_response({"error": error}, status=act)
        if act == "hang" or "hang" in asked.fields["prompt"]:
            await asyncio.Event().wait()
        if act == "moderate" or "forbidden" in asked.fields["prompt"]:
            return web.json_response(_MODERATED, status=400)
        if act == "garbage":
            return web.json_response({"data": [{"b64_json": "!!"}]})
        if act == "nothing":
            return web.json_response({"created": 1, "data": []})
        if asked.fields.get("stream"):
            return await self._streamed(act, asked, request)
        entry: dict[str, Any] = {"b64_json": _painted(asked), "revised_prompt": "Revised."}
        if act == "url":
            entry = {"url": f"{self.url.removesuffix('/v1')}/made.png"}
        whole = {"created": 1, "data": [entry], "quality": "low", "usage": USAGE}
        return web.json_response({**whole, "background": "opaque", "output_format": "png"})

    async def _streamed(self, act: str, asked: Asked, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        kind = "image_edit" if asked.route == "edits" else "image_generation"
        about = {"created_at": 1, "size": "8x6", "quality": "low", "background": "opaque"}

        async def say(name: str, **fields: Any) -> None:
            event = {"type": name, **about, "output_format": "png", **fields}
            await response.write(f"event: {name}\ndata: {json.dumps(event)}\n\n".encode())

        for index in range(int(asked.fields["partial_images"])):
            partial = base64.b64encode(png(8, 6, (index, 0, 0))).decode()
            await say(f"{kind}.partial_image", b64_json=partial, partial_image_index=index)
        if act == "break":
            assert request.transport is not None
            request.transport.abort()
        elif act == "error":
            await say("error", error=_MODERATED["error"])
        else:
            await say(f"{kind}.completed", b64_json=_painted(asked), usage=USAGE)
        return response

    async def made(self, request: web.Request) -> web.Response:
        return web.Response(body=png(8, 6), content_type="image/png")


def _painted(asked: Asked) -> str:
    color = (0, 200, 0) if asked.route == "edits" else (200, 0, 0)
    width, height = asked.fields.get("size", "8x6").split("x")
    return base64.b64encode(png(int(width), int(height), color)).decode()


async def _read(request: web.Request) -> Asked:
    route, key = request.path.rpartition("/")[2], request.headers.get("authorization")
    if request.content_type == "application/json":
        return Asked(route, await request.json(), [], key)
    fields, files = {}, []
    for name, value in (await request.post()).items():
        if isinstance(value, web.FileField):
            files.append((name, value.filename, value.content_type, value.file.read()))
        else:
            fields[name] = value
    return Asked(route, fields, files, key)


@asynccontextmanager
async def studio(*script: str | int) -> AsyncIterator[Studio]:
    """A server on a loopback port; its ``url`` ends in ``/v1``."""
    playing = Studio(script=list(script) or ["paint"])
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/images/{route}", playing.answer)
    app.router.add_get("/made.png", playing.made)
    async with TestServer(app, host="127.0.0.1", handler_cancellation=True) as server:
        playing.url = f"http://127.0.0.1:{server.port}/v1"
        yield playing


@contextmanager
def studio_aside() -> Iterator[Studio]:
    """The same in a thread of its own, for tests that have no loop."""
    begun: queue.Queue[tuple[Studio, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        async with studio() as playing:
            over = asyncio.Event()
            begun.put((playing, asyncio.get_running_loop(), over))
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    playing, loop, over = begun.get(timeout=30)
    try:
        yield playing
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
