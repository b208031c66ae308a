"""Endpoints of OpenAI's Images API. The images come from the generator of the tool
``image_generation``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from antiphon.compat.images import (
    EditImages,
    EditImagesForm,
    GenerateImages,
    ImageEvent,
    ImagesAnswer,
    ImagesRequest,
    image_event,
    images_answer,
    parse_edit,
    parse_edit_form,
    parse_generation,
)
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.middleware.request_context import RequestContext, header, request_context
from antiphon.http.openapi.operation import Form, operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests import multipart
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.http.streaming.task_stream import (
    TaskStream,
    first_awaited,
)
from antiphon.wire.response import Usage

_MAX_IMAGES = 16
_FIELD_BYTES = 128 * 1024
_Uploads = tuple[tuple[bytes, ...], bytes | None]


class ImageRoutes:
    """All routes below ``/v1/images``."""

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps
        self._images = deps.service.images

    @operation(
        "POST /v1/images/generations",
        "createImage",
        body=GenerateImages,
        answer=ImagesAnswer,
        events=ImageEvent,
        errors=(403, 502),
    )
    async def generate(self, request: Request) -> Reply | TaskStream:
        """Generate images from a prompt."""
        parsed = await bodies.parse(request, self._deps.limits, parse_generation)
        return await self._answer(request, parsed, ((), None))

    @operation(
        "POST /v1/images/edits",
        "createImageEdit",
        form=Form(file="image", has_many_files=True, fields=EditImagesForm),
        body=EditImages,
        answer=ImagesAnswer,
        events=ImageEvent,
        errors=(403, 502),
    )
    async def edit(self, request: Request) -> Reply | TaskStream:
        """Make images from other images and a prompt. The body is a form or JSON."""
        scope, limits = request.scope, self._deps.limits
        if b"json" in (header(scope, b"content-type") or b""):
            parsed = await bodies.parse(request, limits, parse_edit)
            return await self._answer(request, parsed, ((), None))
        form = await multipart.read_files(
            scope,
            request.receive,
            file="image",
            limit=limits.max_file_bytes,
            max_files=_MAX_IMAGES + 1,
            field_bytes=_FIELD_BYTES,
        )
        contents = tuple(content for _, content in form.files)
        parsed = parse_edit_form(form.fields)
        return await self._answer(request, parsed, (contents, form.more_files.get("mask")))

    async def _answer(
        self, request: Request, parsed: ImagesRequest, uploads: _Uploads
    ) -> Reply | TaskStream:
        context = request_context(request.scope)
        if parsed.stream:
            events = await first_awaited(request, self._events(context, parsed, uploads))
            keepalive_s = self._deps.service.keepalive_s
            return TaskStream(events, keepalive_s)
        async with (
            CancelOnDisconnect(request.scope, request.receive),
            self._deps.slot(context),
        ):
            works = (self._one(context, parsed, uploads) for _ in range(parsed.n))
            images = await asyncio.gather(*works)
        return json_reply(images_answer(parsed, images, self._now()))

    async def _one(self, context: RequestContext, parsed: ImagesRequest, uploads: _Uploads) -> Any:
        """Return one generated image."""
        images = self._images.generate(context.tenant, context.client, parsed, *uploads)
        found = [image async for image in images]
        self._count(context, found[-1])
        return found[-1]

    async def _events(
        self, context: RequestContext, parsed: ImagesRequest, uploads: _Uploads
    ) -> AsyncGenerator[ImageEvent, None]:
        index = 0
        async with (
            self._deps.slot(context),
            aclosing(
                self._images.generate(context.tenant, context.client, parsed, *uploads)
            ) as images,
        ):
            async for found in images:
                is_last = hasattr(found, "usage")
                yield image_event(parsed, found, self._now(), index=None if is_last else index)
                index += 1
                if is_last:
                    self._count(context, found)

    def _count(self, context: RequestContext, generated: Any) -> None:
        """Record an image in the usage log, as a call of the tool, whose name is also that of the
        model."""
        usage = generated.usage
        self._deps.service.usage_counter.add_task(
            context.tenant,
            context.key,
            "image_generation",
            Usage(
                input_tokens=int(usage.get("input_tokens", 0)),
                output_tokens=int(usage.get("output_tokens", 0)),
            ),
            latency_s=self._deps.clock() - context.started,
            tool_calls=1,
        )

    def _now(self) -> int:
        return int(self._deps.service.usage_counter.clock())
