"""The images of a conversation, numbered from 1 as they stand in it: those that came with messages
and results, those that were made before, and those made now. Read when they are asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET, Struct

from antiphon.attachments.data_urls import NotEncoded, inline_bytes
from antiphon.attachments.fetch import Failed, Fetcher
from antiphon.errors import RequestError, ToolError
from antiphon.tools.containers.container import Uploads
from antiphon.wire import items as it

from .base import Image, read_image

__all__ = ["ConversationImages", "ImageSources"]


class ImageSources(Struct, frozen=True):
    """How images are reached. ``uploads``, ``fetcher``: None where there are no files, and where no
    URLs are fetched; ``most_bytes``: of one."""

    uploads: Uploads | None
    fetcher: Fetcher | None
    max_bytes: int

    async def read(self, tenant: str, reference: Mapping[str, Any]) -> Image:
        """What ``file_id`` or ``image_url`` names. Raises ``ToolError``."""
        try:
            content = await self._content(tenant, reference)
        except (Failed, NotEncoded) as trouble:
            raise ToolError(f"An image cannot be read: {trouble}.") from None
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
                raise Failed("url", "this server keeps no files")
            return (await self.uploads.read(tenant, file_id))[1]
        if not url or url is UNSET:
            raise NotEncoded("it gives neither bytes nor a URL nor a file_id")
        if url[:8].lower().startswith(("http://", "https://")):
            if self.fetcher is None:
                raise Failed("url", "this server fetches no URLs")
            return (await self.fetcher.fetch(url)).content
        return (await asyncio.to_thread(inline_bytes, url))[1]


class _ImageGroup(Struct, frozen=True):
    """Images that stand together: of one message, or one that was made."""

    images: tuple[Mapping[str, Any] | Image, ...]
    id: str = ""


class ConversationImages:
    """Of one response."""

    def __init__(self, items: Iterable[it.Item], sources: ImageSources, tenant: str) -> None:
        self._sources = sources
        self._tenant = tenant
        self._groups = _image_groups(items)

    def __len__(self) -> int:
        return sum(len(group.images) for group in self._groups)

    def add(self, image: Image) -> int:
        """One that was made now; returns its number."""
        self._groups.append(_ImageGroup((image,)))
        return len(self)

    def latest(self) -> tuple[int, ...]:
        """The image that was made last, or all of the message that came after it."""
        if not self._groups:
            return ()
        last = len(self)
        return tuple(range(last - len(self._groups[-1].images) + 1, last + 1))

    async def read(self, number: int) -> Image:
        """Raises ``ToolError``; negative numbers count from the end."""
        every = [image for group in self._groups for image in group.images]
        at = number - 1 if number > 0 else len(every) + number
        if number == 0 or not 0 <= at < len(every):
            have = f"There are {len(every)}" if every else "There are none"
            raise ToolError(f"There is no image {number}. {have} in this conversation.")
        found = every[at]
        return found if isinstance(found, Image) else await self._sources.read(self._tenant, found)


def _image_groups(items: Iterable[it.Item]) -> list[_ImageGroup]:
    """An image that is named again stands where it is named last."""
    found: dict[str, _ImageGroup] = {}
    for place, item in enumerate(items):
        if isinstance(item, it.ImageGenerationCall):
            if item.result:
                key = item.id or str(place)
                found.pop(key, None)
                found[key] = _ImageGroup(({"image_url": item.result},), key)
            continue
        content = getattr(item, "content", getattr(item, "output", ()))
        parts = content if isinstance(content, tuple) else ()
        images = tuple(
            {"file_id": part.file_id, "image_url": part.image_url}
            for part in parts
            if isinstance(part, it.InputImage)
        )
        if images:
            found[str(place)] = _ImageGroup(images)
    return list(found.values())
