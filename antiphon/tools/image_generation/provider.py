"""image_generation, as responses have it: one function for the model, ``image_generation_call``
items for the client. It does not know who makes the images.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, RunError, ToolError
from antiphon.tools.arguments import parse_arguments
from antiphon.tools.base import CallContext, ResponseContext, Result, Step, ToolFunction, Toolset
from antiphon.wire import tools as tl
from antiphon.wire.items import ImageGenerationCall, Item

from .base import Image, ImageGenerator, ImageRequest, Made, Order, Partial, Unable
from .conversation_images import Gallery, Sources
from .encoding import rewritten
from .request import action_of, check_mask, refused, wish_of

__all__ = ["NAME", "ImageGeneration", "Rules"]

NAME = "image_generation"
_ABOUT = (
    "Makes an image of a description, and shows it to the user. Describe all that is to be seen."
)
_EDITS = (
    " Give `images` to change images of the conversation, or to make a new one of them: their"
    " numbers, 1 for the first one in the conversation, -1 for the last one."
)
_PROMPT = {"type": "string", "description": "What the image is to show, in detail."}
_IMAGES = {"type": "array", "items": {"type": "integer"}}
#: As many as OpenAI takes.
_MOST_IMAGES = 16
_MODERATED = "image_content_policy_violation"


class Rules(Struct, frozen=True, kw_only=True):
    """``model``: what the maker calls the one of requests that name none; ``models``: names that
    requests may give, and what the maker calls these. ``at_once``: images made side by side."""

    model: str | None = None
    models: Mapping[str, str] = {}
    most_pixels: int
    most_bytes: int
    at_once: int


class ImageGeneration:
    """``Provider`` over a maker, which it does not own."""

    def __init__(self, maker: ImageGenerator, sources: Sources, rules: Rules) -> None:
        self._maker = maker
        self._sources = sources
        self._rules = rules
        self._places = asyncio.Semaphore(rules.at_once)

    def check(self, tool: Any, path: str) -> None:
        check_mask(tool, path)
        wish = self._wish(tool, path)
        if not self._maker.edits and action_of(tool) == "edit":
            what = "input_image_mask" if tool.action != "edit" else "action"
            raise refused(f"{path}.{what}", "images cannot be edited here")
        if not self._maker.masks and tool.input_image_mask is not UNSET:
            raise refused(f"{path}.input_image_mask", "masks cannot be used here")
        try:
            self._maker.check(wish)
        except Unable as unable:
            raise refused(f"{path}.{unable.field}", str(unable)) from None

    async def admit(self, tool: Any, opening: ResponseContext, path: str) -> None:
        """Raises ``InvalidRequest`` for a mask that cannot be read, and where there is nothing to
        edit."""
        if action_of(tool) == "edit" and not len(self._gallery(opening)):
            raise refused(f"{path}.action", "there is no image in the conversation to edit")
        if tool.input_image_mask is UNSET:
            return
        where = f"{path}.input_image_mask"
        try:
            mask = await self._sources.read(opening.tenant, tool.input_image_mask)
        except ToolError as error:
            raise InvalidRequest(error.message, param=where, code="invalid_image") from None
        if mask.format != "png":
            raise refused(where, "a mask is a PNG, transparent where the image is to change")

    def lead(self, tool: Any, opening: ResponseContext) -> Item | None:
        return None

    @asynccontextmanager
    async def open(self, tool: Any, opening: ResponseContext) -> AsyncIterator[Toolset]:
        work = _Work(
            self._maker,
            self._gallery(opening),
            wish=self._wish(tool, "tools"),
            action=action_of(tool) if self._maker.edits else "generate",
            places=self._places,
            most_bytes=self._rules.most_bytes,
        )
        if tool.input_image_mask is not UNSET:
            work.mask = await self._sources.read(opening.tenant, tool.input_image_mask)
        offer = ToolFunction(
            tool=_function(work.action), shell=ImageGenerationCall(), call=work.run
        )
        yield Toolset(offers=(offer,))

    def _wish(self, tool: Any, path: str) -> ImageRequest:
        rules = self._rules
        wish = wish_of(tool, path, models=rules.models, most_pixels=rules.most_pixels)
        return wish if wish.model is not None else replace(wish, model=rules.model)

    def _gallery(self, opening: ResponseContext) -> Gallery:
        return Gallery(opening.items, self._sources, opening.tenant)


class _Work:
    """What one response makes."""

    def __init__(
        self,
        maker: ImageGenerator,
        gallery: Gallery,
        *,
        wish: ImageRequest,
        action: str,
        places: asyncio.Semaphore,
        most_bytes: int,
    ) -> None:
        self.action = action
        self.mask: Image | None = None
        self._maker = maker
        self._gallery = gallery
        self._wish = wish
        self._places = places
        self._most_bytes = most_bytes

    async def run(
        self, arguments: str, context: CallContext
    ) -> AsyncGenerator[Step | Result, None]:
        """One call."""
        order = await self._order(parse_arguments(arguments))
        made: Made | None = None
        try:
            async with self._places, aclosing(self._maker.make(order)) as images:
                yield Step("generating")
                shown = 0
                async for image in images:
                    if isinstance(image, Made):
                        made = image
                        break
                    if shown < self._wish.partial_images:
                        yield Step("partial_image", await self._partial(image, shown))
                        shown += 1
            if made is None or len(made.image.content) > self._most_bytes:
                raise ToolError("The image is too large." if made else "No image was made.")
        except RunError as error:
            yield _failure(error)
            return
        written = await asyncio.to_thread(rewritten, made.image, self._wish)
        made = replace(made, image=written)
        fields = await self._fields(order, made)
        number = self._gallery.add(made.image)
        yield Result(
            text=_told(number, made.image),
            fields=fields,
            used={"image_gen": made.used} if made.used else {},
        )

    async def _order(self, asked: Mapping[str, Any]) -> Order:
        """Raises ``ToolError`` for what the model cannot have."""
        prompt = asked.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise ToolError("'prompt' is missing.")
        # small models name images where there are none
        can_edit = self.action != "generate" and len(self._gallery) > 0
        numbers = _numbers(asked.get("images")) if can_edit else ()
        if self.action == "edit" and not numbers:
            numbers = self._gallery.latest()
        if len(numbers) > _MOST_IMAGES:
            raise ToolError(f"At most {_MOST_IMAGES} images can be used at a time.")
        images = tuple([await self._gallery.read(number) for number in numbers])
        return Order(
            prompt=prompt.strip(),
            wish=self._wish,
            images=images,
            mask=self.mask if images else None,
        )

    async def _partial(self, partial: Partial, index: int) -> dict[str, Any]:
        fields = {
            "partial_image_b64": await _encoded(partial.image),
            "partial_image_index": index,
            "size": partial.image.size,
            "quality": self._wish.quality or "auto",
            "background": self._wish.background or "auto",
            "output_format": partial.image.format,
        }
        return {name: value for name, value in fields.items() if value is not None}

    async def _fields(self, order: Order, made: Made) -> dict[str, Any]:
        """What the item tells: what was made, which need not be what was asked."""
        fields = {
            "result": await _encoded(made.image),
            "action": "edit" if order.images else "generate",
            "background": made.background or self._wish.background or "auto",
            "output_format": made.image.format,
            "quality": made.quality or self._wish.quality or "auto",
            "revised_prompt": made.revised_prompt or order.prompt,
            "size": made.image.size,
            "svg_usage": made.svg_usage,
        }
        return {name: value for name, value in fields.items() if value is not None}


def _failure(error: RunError) -> Result:
    """What the client and the model are told. The form of what moderation stopped is OpenAI's."""
    moderated = error.code == _MODERATED
    told = {
        "type": "image_generation_user_error" if moderated else "server_error",
        "code": "moderation_blocked" if moderated else "image_generation_failed",
        "message": error.message,
        "param": None,
    }
    return Result(text=f"No image was made: {error.message}", fields={"error": told}, failed=True)


def _function(action: str) -> tl.Function:
    can_edit = action != "generate"
    return tl.Function(
        name=NAME,
        description=_ABOUT + (_EDITS if can_edit else ""),
        parameters={
            "type": "object",
            "properties": {"prompt": _PROMPT, **({"images": _IMAGES} if can_edit else {})},
            "required": ["prompt"],
            "additionalProperties": False,
        },
    )


def _numbers(given: Any) -> tuple[int, ...]:
    """As models write them: one or several, as numbers or as texts."""
    several = given if isinstance(given, list) else [] if given is None else [given]
    try:
        return tuple(dict.fromkeys(int(each) for each in several))
    except (TypeError, ValueError, OverflowError):
        raise ToolError("'images' must be numbers of images.") from None


def _told(number: int, image: Image) -> str:
    size = f" ({image.size} {image.format})" if image.size else f" ({image.format})"
    return f"Image {number}{size} is made, and the user sees it."


async def _encoded(image: Image) -> str:
    return (await asyncio.to_thread(base64.b64encode, image.content)).decode()
