"""The ``image_generation`` tool: the model gets a function, and the client gets
``image_generation_call`` items."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, RunError, ToolError
from antiphon.support.fair_limiter import FairLimiter
from antiphon.tools.arguments import parse_arguments
from antiphon.tools.base import (
    CallContext,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)
from antiphon.wire import tools as tl
from antiphon.wire.items import ImageGenerationCall

from .base import (
    GeneratedImage,
    Image,
    ImageGenerator,
    ImageRequest,
    ImageTask,
    PartialImage,
    UnsupportedOption,
)
from .conversation_images import ConversationImages, ImageSources
from .encoding import convert_image
from .request import check_mask, parse_image_request, requested_action, unfit_field

NAME = "image_generation"
_DESCRIPTION = (
    "Makes an image of a description, and shows it to the user. Describe all that is to be seen."
)
_EDIT_DESCRIPTION = (
    " Give `images` to change images of the conversation, or to make a new one of them: their"
    " numbers, 1 for the first one in the conversation, -1 for the last one."
)
_PROMPT = {"type": "string", "description": "What the image is to show, in detail."}
_IMAGES = {"type": "array", "items": {"type": "integer"}}
#: OpenAI's limit.
_MAX_IMAGES = 16
_MODERATION_CODE = "image_content_policy_violation"


#: Generates one image for a tenant.
_Generate = Callable[[ImageTask, str], AsyncGenerator[PartialImage | GeneratedImage, None]]


class ImagePolicy(Struct, frozen=True, kw_only=True):
    """The operator's rules for image generation.

    - ``model``: the default model, by the name that the generator uses.
    - ``models``: model name in requests → the name that the generator uses.
    - ``max_pixels``: maximum number of pixels that a request may ask for.
    - ``max_bytes``: maximum size of one image.
    - ``concurrency``: maximum number of images that are generated at the same time.
    """

    model: str | None = None
    models: Mapping[str, str] = {}
    max_pixels: int
    max_bytes: int
    concurrency: int


class ImageGenerationProvider(ToolProvider[tl.ImageGeneration]):
    """The ``ToolProvider`` of ``image_generation``. The caller must close the ``ImageGenerator``,
    because the provider does not close it."""

    def __init__(
        self, generator: ImageGenerator, sources: ImageSources, policy: ImagePolicy
    ) -> None:
        self._generator = generator
        self._sources = sources
        self._policy = policy
        self._slots = FairLimiter(policy.concurrency)

    def check(self, tool: tl.ImageGeneration, path: str) -> None:
        check_mask(tool, path)
        image_request = self._image_request(tool, path)
        if not self._generator.supports_edits and requested_action(tool) == "edit":
            what = "input_image_mask" if tool.action != "edit" else "action"
            raise unfit_field(f"{path}.{what}", "images cannot be edited here")
        if not self._generator.supports_masks and tool.input_image_mask is not UNSET:
            raise unfit_field(f"{path}.input_image_mask", "masks cannot be used here")
        try:
            self._generator.check(image_request)
        except UnsupportedOption as unable:
            raise unfit_field(f"{path}.{unable.field}", str(unable)) from None

    async def check_access(
        self, tool: tl.ImageGeneration, response: ResponseContext, path: str
    ) -> None:
        """Raise ``InvalidRequest`` if the mask cannot be read or is not a PNG, or if the request
        asks for an edit and the conversation contains no image."""
        if requested_action(tool) == "edit" and not len(self._conversation_images(response)):
            raise unfit_field(f"{path}.action", "there is no image in the conversation to edit")
        if tool.input_image_mask is UNSET:
            return
        where = f"{path}.input_image_mask"
        try:
            mask = await self._sources.read(response.tenant, tool.input_image_mask)
        except ToolError as error:
            raise InvalidRequest(error.message, param=where, code="invalid_image") from None
        if mask.format != "png":
            raise unfit_field(where, "a mask is a PNG, transparent where the image is to change")

    async def declared_functions(
        self, tool: tl.ImageGeneration, response: ResponseContext
    ) -> tuple[ToolFunction, ...]:
        action = self._action(tool)
        function = ToolFunction(
            tool=_function(action),
            initial_item=ImageGenerationCall(),
            reads_images=action != "generate",
        )
        return (function,)

    @asynccontextmanager
    async def open(
        self, tool: tl.ImageGeneration, response: ResponseContext
    ) -> AsyncIterator[Toolset]:
        session = _ImageSession(
            self.generate,
            self._conversation_images(response),
            request=self._image_request(tool, "tools"),
            action=self._action(tool),
        )
        if tool.input_image_mask is not UNSET:
            session.mask = await self._sources.read(response.tenant, tool.input_image_mask)
        (function,) = await self.declared_functions(tool, response)
        yield Toolset(functions=(replace(function, handler=session.run),))

    async def generate(
        self, task: ImageTask, tenant: str
    ) -> AsyncGenerator[PartialImage | GeneratedImage, None]:
        """Generate one image for a tenant. Yields the requested previews, and then the image in the
        requested format. Raises ``ToolError`` if there is no image or if it is too large."""
        preview_count = 0
        async with (
            self._slots.slot(tenant),
            aclosing(self._generator.generate(task)) as images,
        ):
            async for image in images:
                if isinstance(image, GeneratedImage):
                    if len(image.image.content) > self._policy.max_bytes:
                        raise ToolError("The image is too large.")
                    converted = await asyncio.to_thread(convert_image, image.image, task.request)
                    yield replace(image, image=converted)
                    return
                if preview_count < task.request.partial_images:
                    yield image
                    preview_count += 1
        raise ToolError("No image was generated.")

    async def build_task(
        self,
        tenant: str,
        prompt: str,
        tool: tl.ImageGeneration,
        *,
        images: tuple[Image | Mapping[str, str], ...] = (),
        mask: Image | Mapping[str, str] | None = None,
        path: str,
    ) -> ImageTask:
        """Build the task for one image that a client describes itself. ``tool``: the options.
        ``images``, ``mask``: images, or where they are (``image_url`` or ``file_id``). ``path``:
        where the options are in the request, for errors. Raises ``InvalidRequest``."""
        self.check(tool, path)
        return ImageTask(
            prompt=prompt,
            request=self._image_request(tool, path),
            images=tuple([await self._read(tenant, image, "image") for image in images]),
            mask=None if mask is None else await self._read(tenant, mask, "mask"),
        )

    async def _read(self, tenant: str, image: Image | Mapping[str, str], path: str) -> Image:
        if isinstance(image, Image):
            return image
        try:
            return await self._sources.read(tenant, image)
        except ToolError as error:
            raise InvalidRequest(error.message, param=path, code="invalid_image") from None

    def _action(self, tool: tl.ImageGeneration) -> str:
        """Return the action that the request asks for. If the generator does not support edits,
        return ``generate``."""
        return requested_action(tool) if self._generator.supports_edits else "generate"

    def _image_request(self, tool: tl.ImageGeneration, path: str) -> ImageRequest:
        policy = self._policy
        image_request = parse_image_request(
            tool, path, models=policy.models, max_pixels=policy.max_pixels
        )
        return (
            image_request
            if image_request.model is not None
            else replace(image_request, model=policy.model)
        )

    def _conversation_images(self, response: ResponseContext) -> ConversationImages:
        return ConversationImages(response.all_items, self._sources, response.tenant)


class _ImageSession:
    """Runs the image generation calls of one response."""

    def __init__(
        self,
        generate: _Generate,
        images: ConversationImages,
        *,
        request: ImageRequest,
        action: str,
    ) -> None:
        self.action = action
        self.mask: Image | None = None
        self._generate = generate
        self._images = images
        self._request = request

    async def run(
        self, arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        """Run one tool call of the model. This is the handler of the tool."""
        task = await self._build_task(parse_arguments(arguments))
        task = replace(task, idempotency_key=context.idempotency_key)
        generated: GeneratedImage | None = None
        try:
            yield ToolProgress("generating")
            async with aclosing(self._generate(task, context.tenant)) as images:
                preview_count = 0
                async for image in images:
                    if isinstance(image, GeneratedImage):
                        generated = image
                    else:
                        yield ToolProgress(
                            "partial_image", await self._partial_fields(image, preview_count)
                        )
                        preview_count += 1
            assert generated is not None, "generate ends with the image"
        except RunError as error:
            yield _failed_result(error)
            return
        fields = await self._item_fields(task, generated)
        number = self._images.add(generated.image)
        yield ToolResult(
            text=_result_text(number, generated.image),
            fields=fields,
            usage={"image_gen": generated.usage} if generated.usage else {},
        )

    async def _build_task(self, arguments: Mapping[str, object]) -> ImageTask:
        """Build the task for the image generator from the arguments of a call. Raises ``ToolError``
        for invalid arguments."""
        prompt = arguments.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise ToolError("'prompt' is missing.")
        # small models pass numbers of images that do not exist
        can_edit = self.action != "generate" and len(self._images) > 0
        numbers = _parse_numbers(arguments.get("images")) if can_edit else ()
        if self.action == "edit" and not numbers:
            numbers = self._images.latest()
        if len(numbers) > _MAX_IMAGES:
            raise ToolError(f"At most {_MAX_IMAGES} images can be used at a time.")
        images = tuple([await self._images.read(number) for number in numbers])
        return ImageTask(
            prompt=prompt.strip(),
            request=self._request,
            images=images,
            mask=self.mask if images else None,
        )

    async def _partial_fields(self, partial: PartialImage, index: int) -> dict[str, Any]:
        fields = {
            "partial_image_b64": await _base64(partial.image),
            "partial_image_index": index,
            "size": partial.image.size,
            "quality": self._request.quality or "auto",
            "background": self._request.background or "auto",
            "output_format": partial.image.format,
        }
        return {name: value for name, value in fields.items() if value is not None}

    async def _item_fields(self, task: ImageTask, generated: GeneratedImage) -> dict[str, Any]:
        """Return the fields of the ``image_generation_call`` item. They describe the image that was
        actually generated. This image may differ from the one that the request describes."""
        fields = {
            "result": await _base64(generated.image),
            "action": "edit" if task.images else "generate",
            "background": generated.background or self._request.background or "auto",
            "output_format": generated.image.format,
            "quality": generated.quality or self._request.quality or "auto",
            "revised_prompt": generated.revised_prompt or task.prompt,
            "size": generated.image.size,
            "svg_usage": generated.svg_usage,
        }
        return {name: value for name, value in fields.items() if value is not None}


def _failed_result(error: RunError) -> ToolResult:
    """Return the result of a failed call. If the generator's moderation rejected the image, the
    result contains the error fields that OpenAI uses for this case."""
    is_moderated = error.code == _MODERATION_CODE
    error_fields = {
        "type": "image_generation_user_error" if is_moderated else "server_error",
        "code": "moderation_blocked" if is_moderated else "image_generation_failed",
        "message": error.message,
        "param": None,
    }
    return ToolResult(
        text=f"No image was generated: {error.message}", fields={"error": error_fields}, failed=True
    )


def _function(action: str) -> tl.Function:
    can_edit = action != "generate"
    return tl.Function(
        name=NAME,
        description=_DESCRIPTION + (_EDIT_DESCRIPTION if can_edit else ""),
        parameters={
            "type": "object",
            "properties": {"prompt": _PROMPT, **({"images": _IMAGES} if can_edit else {})},
            "required": ["prompt"],
            "additionalProperties": False,
        },
    )


def _parse_numbers(value: Any) -> tuple[int, ...]:
    """Parse the image numbers in the arguments of a call. Models write one number or a list, as
    integers or strings."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    try:
        return tuple(dict.fromkeys(int(number_text) for number_text in values))
    except (TypeError, ValueError, OverflowError):
        raise ToolError("'images' must be numbers of images.") from None


def _result_text(number: int, image: Image) -> str:
    size = f" ({image.size} {image.format})" if image.size else f" ({image.format})"
    return f"Image {number}{size} was generated, and the user sees it."


async def _base64(image: Image) -> str:
    return (await asyncio.to_thread(base64.b64encode, image.content)).decode()
