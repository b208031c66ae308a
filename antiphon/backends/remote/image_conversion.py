"""Convert the images of a conversation to a format that an upstream can read."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from antiphon.engines.common.pillow_images import as_png
from antiphon.inference.conversation import Conversation
from antiphon.stream.kinds import KINDS, parts_of


async def convert_images(
    conversation: Conversation, unreadable_formats: Collection[str]
) -> Conversation:
    """Return the conversation with all images of unreadable formats converted to PNG.

    ``unreadable_formats``: MIME types of the formats that the upstream cannot read. Raises
    ``InvalidRequest`` for an image that cannot be converted.
    """
    heads = tuple(f"data:{mime};" for mime in unreadable_formats)
    if not heads or not any(
        _is_unread(part, heads) for item in conversation.items for part in parts_of(item)
    ):
        return conversation
    return await asyncio.to_thread(_rewritten, conversation, heads)


def _rewritten(conversation: Conversation, heads: tuple[str, ...]) -> Conversation:
    items = list(conversation.items)
    for index, item in enumerate(items):
        if parts := [_readable(part, heads) for part in parts_of(item)]:
            field = KINDS[type(item)].parts_field
            is_one = not isinstance(getattr(item, field), tuple)
            items[index] = replace(item, **{field: parts[0] if is_one else tuple(parts)})
    return replace(conversation, items=tuple(items))


def _is_unread(part: object, heads: tuple[str, ...]) -> bool:
    url = getattr(part, "image_url", None)
    return isinstance(url, str) and url.startswith(heads)


def _readable(part: Any, heads: tuple[str, ...]) -> Any:
    if not _is_unread(part, heads):
        return part
    head, _, body = part.image_url.partition(";base64,")
    content = as_png(base64.b64decode(body), head.removeprefix("data:"))
    url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return replace(part, image_url=url)
