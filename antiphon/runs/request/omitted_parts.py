"""Find the parts of a request that a model cannot read. Notes replace them in its prompt."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from antiphon.backends.base import BackendCapabilities
from antiphon.inference.conversation import Conversation
from antiphon.stream.kinds import KINDS
from antiphon.wire import items as it
from antiphon.wire.response import OmittedPart
from antiphon.wire.tags import tag_of

_IMAGES = (it.InputImage, it.ComputerScreenshot)
_AUDIO_VIDEO = (it.InputAudio, it.InputVideo)


def unread_types(capabilities: BackendCapabilities) -> tuple[type[Struct], ...]:
    """Return the types of the parts that a backend with these capabilities cannot read."""
    images = () if capabilities.images else _IMAGES
    return images if capabilities.audio_video else (*images, *_AUDIO_VIDEO)


def find_omitted_parts(
    conversation: Conversation, unread: tuple[type[Struct], ...]
) -> tuple[OmittedPart, ...]:
    """Return the parts of the request that have one of these types, which its backend cannot read.
    The parts of earlier turns were reported by the earlier responses."""
    return tuple(
        OmittedPart(type=tag_of(type(part)), param=f"input[{index}].{path}")
        for index, item in enumerate(conversation.items[conversation.past_count :])
        for path, part in part_paths(item)
        if isinstance(part, unread)
    )


def part_paths(item: it.Item) -> list[tuple[str, Any]]:
    """Return the parts of an item and their paths in the item."""
    field = KINDS[type(item)].parts_field
    value = getattr(item, field) if field else ()
    if isinstance(value, tuple):
        return [(f"{field}[{number}]", part) for number, part in enumerate(value)]
    return [(field, value)]
