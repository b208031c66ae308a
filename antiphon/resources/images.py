"""Generate images for clients that describe them themselves, with the generator of the tool
``image_generation``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Protocol

from msgspec.structs import replace

from antiphon.errors import InvalidRequest, invalid_field
from antiphon.limits.clients import Client
from antiphon.tools.base import AnyToolProvider
from antiphon.tools.image_generation.base import GeneratedImage, Image, PartialImage, read_image
from antiphon.tools.image_generation.provider import NAME, ImageGenerationProvider
from antiphon.wire.tools import ImageGeneration

#: The place of the options in the errors of the tool, which clients of this API do not see.
_PATH = "options"


class DescribedImages(Protocol):
    """A request for images, as the HTTP layer parses it."""

    @property
    def prompt(self) -> str: ...
    @property
    def options(self) -> ImageGeneration: ...
    @property
    def is_edit(self) -> bool: ...
    @property
    def images(self) -> tuple[Mapping[str, str], ...]: ...
    @property
    def mask(self) -> Mapping[str, str] | None: ...


class Images:
    """Generates images. ``provider``: the provider of the tool; another provider or None means that
    the server generates no images."""

    def __init__(self, provider: AnyToolProvider | None) -> None:
        self._provider = provider

    async def generate(
        self,
        tenant: str,
        client: Client,
        request: DescribedImages,
        contents: tuple[bytes, ...] = (),
        mask: bytes | None = None,
    ) -> AsyncGenerator[PartialImage | GeneratedImage, None]:
        """Generate one image: yield previews, and then the image. ``contents``, ``mask``: uploaded
        images of an edit. Raises ``RequestError``, ``RunError``."""
        provider = self._provider
        if not isinstance(provider, ImageGenerationProvider):
            raise InvalidRequest(
                "This server generates no images. Set 'image_generation.url' in the settings.",
                code="unsupported_value",
            )
        client.check_any_tool(NAME)
        try:
            task = await provider.build_task(
                tenant,
                request.prompt,
                replace(request.options, action="edit" if request.is_edit else "generate"),
                images=(*map(_uploaded, contents), *request.images),
                mask=request.mask if mask is None else _uploaded(mask, "mask"),
                path=_PATH,
            )
        except InvalidRequest as error:
            if error.param is not None and error.param.startswith(f"{_PATH}."):
                param = error.param.removeprefix(f"{_PATH}.")
                error.message = error.message.replace(error.param, param)
                error.param = param
            raise
        async with aclosing(provider.generate(task, tenant)) as images:
            async for image in images:
                yield image


def _uploaded(content: bytes, path: str = "image") -> Image:
    """Return an uploaded image. Raises ``InvalidRequest`` if it is none."""
    image = read_image(content)
    if image is None:
        raise invalid_field(
            path, "the file is not an image in a known format.", code="invalid_image"
        )
    return image
