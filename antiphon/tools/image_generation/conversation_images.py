"""The images of a conversation, numbered from 1 in order of appearance.

They come from messages, tool results and image generation calls. An image is loaded only when it is
needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET, Struct

from antiphon.attachments.data_urls import InvalidEncoding, decode_inline
from antiphon.attachments.fetch import Fetcher, FetchError
from antiphon.errors import RequestError, ToolError
from antiphon.stream.kinds import parts_of
from antiphon.tools.containers.container import Uploads
from antiphon.wire import items as it

from .base import Image, read_image


class ImageSources(Struct, frozen=True):
    """Loads images that a conversation refers to.

    - ``uploads``: the uploaded files. None if the server stores no files.
    - ``fetcher``: downloads URLs. None if the server fetches no URLs.
    - ``max_bytes``: maximum size of one image.
    """

    uploads: Uploads | None
    fetcher: Fetcher | None
    max_bytes: int

    async def read(self, tenant: str, reference: Mapping[str, object]) -> Image:
        """Load the image to which ``file_id`` or ``image_url`` in ``reference`` refers. Raises
        ``ToolError``."""
        try:
            content = await self._content(tenant, reference)
        except (FetchError, InvalidEncoding) as error:
            raise ToolError(f"An image cannot be read: {error}.") from None
        except RequestError as error:
            raise ToolError(error.message) from None
        if len(content) > self.max_bytes:
            raise ToolError(f"An image cannot be read: it has more than {self.max_bytes} bytes.")
        image = read_image(content)
        if image is None:
            raise ToolError("An image cannot be read: it is in no known format.")
        return image

    async def _content(self, tenant: str, reference: Mapping[str, Any]) -> bytes:
        file_id, url = reference.get("file_id"), reference.get("image_url")
        if file_id and file_id is not UNSET:
            if self.uploads is None:
                raise FetchError("url", "this server keeps no files")
            return (await self.uploads.read(tenant, file_id))[1]
        if not url or url is UNSET:
            raise InvalidEncoding("it has neither an image_url nor a file_id")
        if url[:8].lower().startswith(("http://", "https://")):
            if self.fetcher is None:
                raise FetchError("url", "this server fetches no URLs")
            return (await self.fetcher.fetch(url, tenant=tenant)).content
        return (await asyncio.to_thread(decode_inline, url))[1]


class _ImageGroup(Struct, frozen=True):
    """Images that belong together: all images of one message, all images of one tool result, or one
    generated image."""

    images: tuple[Mapping[str, Any] | Image, ...]
    id: str = ""


class ConversationImages:
    """The numbered images of the conversation to which a response belongs."""

    def __init__(self, items: Iterable[it.Item], sources: ImageSources, tenant: str) -> None:
        self._sources = sources
        self._tenant = tenant
        self._groups = _image_groups(items)

    def __len__(self) -> int:
        return sum(len(group.images) for group in self._groups)

    def add(self, image: Image) -> int:
        """Add an image that this response generated. Return the number of the image."""
        self._groups.append(_ImageGroup((image,)))
        return len(self)

    def latest(self) -> tuple[int, ...]:
        """Return the numbers of the most recent images: all images of the last message or tool
        result that contains images, or the last generated image if it came later."""
        if not self._groups:
            return ()
        last = len(self)
        return tuple(range(last - len(self._groups[-1].images) + 1, last + 1))

    async def read(self, number: int) -> Image:
        """Load the image with this number. Negative numbers count from the end. Raises
        ``ToolError``."""
        images = [image for group in self._groups for image in group.images]
        at = number - 1 if number > 0 else len(images) + number
        if number == 0 or not 0 <= at < len(images):
            count_text = f"There are {len(images)}" if images else "There are none"
            raise ToolError(f"There is no image {number}. {count_text} in this conversation.")
        image = images[at]
        return image if isinstance(image, Image) else await self._sources.read(self._tenant, image)


def _image_groups(items: Iterable[it.Item]) -> list[_ImageGroup]:
    """Return the images of ``items`` in groups: one group for each message, each tool result and
    each generated image. If the same image generation call occurs twice, only its last occurrence
    counts."""
    groups: dict[str, _ImageGroup] = {}
    for index, item in enumerate(items):
        if isinstance(item, it.ImageGenerationCall):
            if item.result:
                key = item.id or str(index)
                groups.pop(key, None)
                groups[key] = _ImageGroup(({"image_url": item.result},), key)
            continue
        images = tuple(
            {"file_id": part.file_id, "image_url": part.image_url}
            for part in parts_of(item)
            if isinstance(part, it.InputImage)
        )
        if images:
            groups[str(index)] = _ImageGroup(images)
    return list(groups.values())
