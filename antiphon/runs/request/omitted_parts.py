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


def find_omitted_parts(
    conversation: Conversation, capabilities: BackendCapabilities
) -> tuple[OmittedPart, ...]:
    """Return the parts of the request that a backend with these capabilities cannot read. The parts
    of earlier turns were reported by the earlier responses."""
    unread: tuple[type[Struct], ...] = ()
    if not capabilities.images:
        unread += _IMAGES
    if not capabilities.audio_video:
        unread += _AUDIO_VIDEO
    if not unread:
        return ()
    return tuple(
        OmittedPart(type=tag_of(type(part)), param=f"input[{index}].{path}")
        for index, item in enumerate(conversation.items[conversation.past_count :])
        for path, part in _parts(item)
        if isinstance(part, unread)
    )


def _parts(item: it.Item) -> list[tuple[str, Any]]:
    """Return the parts of an item and their paths in the item."""
    field = KINDS[type(item)].parts_field
    value = getattr(item, field) if field else ()
    if isinstance(value, tuple):
        return [(f"{field}[{number}]", part) for number, part in enumerate(value)]
    return [(field, value)]
