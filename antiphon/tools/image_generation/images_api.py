"""Image generation by another server, the upstream, with OpenAI's Images API (``generations`` and
``edits``)."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.attachments.fetch import Fetcher, FetchError
from antiphon.errors import BackendError, SetupError
from antiphon.upstream.client import Upstream
from antiphon.upstream.errors import parse_error, upstream_error
from antiphon.upstream.multipart import FormFile, encode_form

from .base import (
    MIME_TYPES,
    GeneratedImage,
    Image,
    ImageRequest,
    ImageTask,
    PartialImage,
    UnsupportedOption,
    read_image,
)

_NO_IMAGE = "The upstream's answer contains no image."
#: Fields of an ``ImageRequest`` that are sent to the upstream under the same names.
_FIELDS = (
    "model",
    "quality",
    "background",
    "output_compression",
    "complexity",
    "frame_count",
    "frame_duration_ms",
)
#: Fields that only ``generations`` accepts, and fields that only ``edits`` accepts.
_GENERATION_FIELDS, _EDIT_FIELDS = ("moderation",), ("input_fidelity",)
#: Fields of the upstream's usage that are copied to the response (``tool_usage.image_gen``).
_COUNTS = ("input_tokens", "output_tokens", "total_tokens", "cached_tokens")
_DETAILS = ("input_tokens_details", "output_tokens_details", "cached_tokens_details")


class ImagesApiOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's options for the Images API (``image_generation.options``).

    - ``headers``, ``body``: header fields and body fields that are added to every request.
    - ``connect_s``: time limit for opening a connection, in seconds.
    - ``silence_s``: maximum time without data from the upstream, in seconds.
    - ``streams``: whether the upstream can stream previews.
    - ``edits``: whether the upstream has the endpoint ``/images/edits``.
    - ``masks``: whether that endpoint accepts masks.
    - ``without``: fields of the tool that the upstream does not support. A request with one of
      these fields is rejected.
    """

    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    connect_s: float = 10
    silence_s: float = 600
    streams: bool = True
    edits: bool = True
    masks: bool = True
    without: list[str] = field(default_factory=list)


class ImagesApi:
    """The ``ImageGenerator`` that uses the Images API of another server, the upstream.

    - ``upstream``: the HTTP client of the upstream. ``close`` closes it.
    - ``fetcher``: downloads the image if the upstream answers with a URL.
    - ``max_bytes``: maximum size of one image.
    """

    def __init__(
        self,
        upstream: Upstream,
        options: ImagesApiOptions,
        *,
        fetcher: Fetcher | None,
        max_bytes: int,
    ) -> None:
        self._upstream = upstream
        self._options = options
        self._fetcher = fetcher
        self._max_bytes = max_bytes

    @classmethod
    def open(
        cls,
        url: str,
        *,
        key: str | None,
        settings: Mapping[str, object],
        fetcher: Fetcher | None,
        max_bytes: int,
    ) -> ImagesApi:
        """Create the ``ImageGenerator`` for the Images API at ``url``. ``settings``: the operator's
        options. Raises ``SetupError``."""
        try:
            options = msgspec.convert(dict(settings), ImagesApiOptions)
        except msgspec.ValidationError as error:
            raise SetupError(f"image_generation.options: {error}") from None
        if unknown := sorted(set(options.without) - set(ImageRequest.__struct_fields__)):
            raise SetupError(
                f"image_generation.options.without: the tool has no field {unknown[0]!r}"
            )
        upstream = Upstream(
            url,
            key=key,
            headers=options.headers,
            connect_s=options.connect_s,
            silence_s=options.silence_s,
        )
        return cls(upstream, options, fetcher=fetcher, max_bytes=max_bytes)

    @property
    def supports_edits(self) -> bool:
        return self._options.edits

    @property
    def supports_masks(self) -> bool:
        return self._options.edits and self._options.masks

    def check(self, request: ImageRequest) -> None:
        for name in self._options.without:
            if getattr(request, name) != getattr(ImageRequest(), name):
                raise UnsupportedOption(name, "the image generator does not support it")
        if request.partial_images and not self._options.streams:
            raise UnsupportedOption("partial_images", "the image generator makes no previews")

    async def generate(
        self, task: ImageTask
    ) -> AsyncGenerator[PartialImage | GeneratedImage, None]:
        route = "edits" if task.images else "generations"
        fields = self._request_fields(task)
        if task.images:
            kind, body = _form(fields, task)
        else:
            kind, body = "application/json", msgspec.json.encode(fields)
        url = f"{self._upstream.versioned_url}/images/{route}"
        headers = {"content-type": kind}
        if task.idempotency_key:
            headers["idempotency-key"] = task.idempotency_key
        response_stream = self._upstream.stream(url, body, headers)
        async with aclosing(response_stream) as batches:
            async for payloads in batches:
                for payload in payloads:
                    made = await self._parse_payload(payload)
                    if made is not None:
                        yield made
                    if isinstance(made, GeneratedImage):
                        return
        raise BackendError("The upstream ended without an image.")

    async def close(self) -> None:
        await self._upstream.close()

    # --- requests --------------------------------------------------------------------------------

    def _request_fields(self, task: ImageTask) -> dict[str, Any]:
        request = task.request
        names = (*_FIELDS, *(_EDIT_FIELDS if task.images else _GENERATION_FIELDS))
        fields: dict[str, Any] = {
            **self._options.body,
            "prompt": task.prompt,
            **{name: value for name in names if (value := getattr(request, name)) is not None},
        }
        if request.size is not None:
            fields["size"] = f"{request.size[0]}x{request.size[1]}"
        if request.output_format != "png":  # png is the default, and many servers lack this field
            fields["output_format"] = request.output_format
        if request.svg is not None:
            fields["svg"] = dict(request.svg)
        if request.partial_images:
            fields |= {"stream": True, "partial_images": request.partial_images}
        return fields

    # --- answers ---------------------------------------------------------------------------------

    async def _parse_payload(self, payload: bytes) -> PartialImage | GeneratedImage | None:
        """Return the preview or the final image that a piece of the upstream's answer contains.
        Return None if it contains no image.

        Raises ``BackendError``.
        """
        try:
            message = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BackendError("The upstream's answer is not JSON.") from None
        if not isinstance(message, dict):
            raise BackendError(_NO_IMAGE)
        kind = str(message.get("type", ""))
        if message.get("error") or kind == "error":
            raise upstream_error(400, parse_error(message))
        if kind.endswith(".partial_image"):
            return PartialImage(await self._decode_image(message))
        if kind.endswith(".completed") or "data" in message:
            return await self._generated_image(message)
        return None

    async def _generated_image(self, payload: Mapping[str, Any]) -> GeneratedImage:
        data = payload.get("data")
        entry = data[0] if isinstance(data, list) and data else payload
        if not isinstance(entry, Mapping):
            raise BackendError(_NO_IMAGE)
        return GeneratedImage(
            image=await self._decode_image(entry),
            quality=_text(payload, "quality"),
            background=_text(payload, "background"),
            revised_prompt=_text(entry, "revised_prompt"),
            svg_usage=payload["svg_usage"] if isinstance(payload.get("svg_usage"), dict) else None,
            usage=_parse_usage(payload.get("usage")),
        )

    async def _decode_image(self, entry: Mapping[str, object]) -> Image:
        encoded, url = entry.get("b64_json"), entry.get("url")
        if isinstance(encoded, str) and encoded:
            if len(encoded) > self._max_bytes * 4 // 3 + 4:
                raise BackendError("The upstream's image is too large.")
            try:
                content = await asyncio.to_thread(base64.b64decode, encoded, validate=True)
            except (binascii.Error, ValueError):
                raise BackendError(_NO_IMAGE) from None
        elif isinstance(url, str) and url:
            content = await self._fetch(url)
        else:
            raise BackendError(_NO_IMAGE)
        image = read_image(content)
        if image is None:
            raise BackendError(_NO_IMAGE)
        return image

    async def _fetch(self, url: str) -> bytes:
        """Download an image from a URL in the upstream's answer. The URL is checked against SSRF,
        in the same way as the URLs of clients."""
        if self._fetcher is None:
            raise BackendError(
                "The upstream answered with a URL, but this server does not fetch URLs."
            )
        try:
            return (await self._fetcher.fetch(url)).content
        except FetchError as failed:
            raise BackendError(f"The upstream's image cannot be fetched: {failed}.") from None


def _text(payload: Mapping[str, object], name: str) -> str | None:
    value = payload.get(name)
    return value if isinstance(value, str) and value else None


def _parse_usage(payload: object) -> dict[str, Any]:
    """Return the token counts that the upstream reports. Values that are not integers are left
    out."""
    if not isinstance(payload, Mapping) or not isinstance(payload.get("total_tokens"), int):
        return {}
    usage: dict[str, Any] = {n: payload[n] for n in _COUNTS if isinstance(payload.get(n), int)}
    for name in _DETAILS:
        details = payload.get(name)
        if isinstance(details, Mapping):
            usage[name] = {n: count for n, count in details.items() if isinstance(count, int)}
    return usage


def _form(fields: Mapping[str, object], task: ImageTask) -> tuple[str, bytes]:
    """Return the content type and the body of a form with the images of a task."""
    field = "image" if len(task.images) == 1 else "image[]"
    images = [(field, f"image{at}", each) for at, each in enumerate(task.images, 1)]
    if task.mask is not None:
        images.append(("mask", "mask", task.mask))
    files = (
        FormFile(
            field=name,
            filename=f"{stem}.{image.format}",
            media_type=MIME_TYPES[image.format],
            content=image.content,
        )
        for name, stem, image in images
    )
    return encode_form(fields, files)
