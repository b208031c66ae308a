"""OpenAI's Images API: parse requests to generate and edit images, and encode the answers.

The options of an image have the same names as those of the tool ``image_generation``. The fields
follow the types of the ``openai`` SDK 3.57.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.errors import invalid_field, unsupported_parameter, unsupported_value
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import empty_value
from antiphon.wire.parsing.fields import convert, drop_nulls, read_array, read_object, require
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from antiphon.wire.parsing.text_fields import read_texts
from antiphon.wire.tools import ImageGeneration

_MAX_PROMPT = 32_000
_MAX_IMAGES = 16
_Prompt = Annotated[str, Meta(min_length=1, max_length=_MAX_PROMPT)]
#: Options of an image: the fields that the tool ``image_generation`` has, too.
_OPTIONS = frozenset(ImageGeneration.__struct_fields__) - {"action", "input_image_mask"}
_REFUSED = ("style", "markup")


class _Images(Struct, frozen=True, kw_only=True):
    """The fields of all requests for images. ``n``: the number of images. With ``response_format``
    ``url``, an image is a data URL. ``partial_images``: the number of previews in a stream."""

    prompt: _Prompt
    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=10)] = 1
    size: str | None = None
    quality: str | None = None
    background: str | None = None
    output_format: Literal["png", "jpeg", "webp", "gif", "svg"] | None = None
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    moderation: str | None = None
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None = None
    response_format: Literal["b64_json", "url"] = "b64_json"
    stream: bool = False
    user: str | None = None
    safety_identifier: str | None = None
    complexity: Literal["low", "medium", "high"] | None = None
    frame_count: int | None = None
    frame_duration_ms: int | None = None


class GenerateImages(_Images, frozen=True, kw_only=True):
    """The body of ``POST /images/generations``."""

    svg: JsonObject | None = None


class ImageSource(Struct, frozen=True, kw_only=True):
    """An image by its URL, which may be a data URL, or by the id of a file."""

    image_url: str | None = None
    file_id: str | None = None


class EditImagesForm(_Images, frozen=True, kw_only=True):
    """The fields of the form of ``POST /images/edits``, besides ``image`` and ``mask``."""

    input_fidelity: Literal["high", "low"] | None = None


class EditImages(EditImagesForm, frozen=True, kw_only=True):
    """The JSON body of ``POST /images/edits``. A client may also send a form with the images."""

    images: Annotated[tuple[ImageSource, ...], Meta(min_length=1, max_length=_MAX_IMAGES)]
    mask: ImageSource | None = None


class ImagesRequest(Struct, frozen=True, kw_only=True):
    """A parsed request. ``options``: the options of each image. ``images``, ``mask``: where the
    images of an edit are; the images of a form are not here."""

    prompt: str
    n: int
    options: ImageGeneration
    stream: bool
    as_url: bool
    is_edit: bool = False
    images: tuple[Mapping[str, str], ...] = ()
    mask: Mapping[str, str] | None = None


class ImageData(Struct, frozen=True, kw_only=True, omit_defaults=True):
    b64_json: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    revised_prompt: str | UnsetType = UNSET


class ImagesAnswer(Struct, frozen=True, kw_only=True):
    """The generated images. Fields that the generator does not report are missing."""

    created: int
    data: tuple[ImageData, ...]
    output_format: str
    size: str | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    background: str | UnsetType = UNSET
    usage: JsonObject | UnsetType = UNSET


class ImageEvent(Struct, frozen=True, kw_only=True):
    """An event of a stream: a preview (``…partial_image``) or the image (``…completed``)."""

    type: Literal[
        "image_generation.partial_image",
        "image_generation.completed",
        "image_edit.partial_image",
        "image_edit.completed",
    ]
    b64_json: str
    created_at: int
    output_format: str
    size: str
    quality: str
    background: str
    partial_image_index: int | UnsetType = UNSET
    usage: JsonObject | UnsetType = UNSET


def parse_generation(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> ImagesRequest:
    """Parse the body of ``POST /images/generations``. Raises ``InvalidRequest``."""
    raw = drop_nulls(parse_json_object(body, limits))
    return _request(raw, GenerateImages)


def parse_edit(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> ImagesRequest:
    """Parse the JSON body of ``POST /images/edits``. Raises ``InvalidRequest``."""
    raw = drop_nulls(parse_json_object(body, limits))
    require(raw, "", "images")
    sources = read_array(raw["images"], "images", _MAX_IMAGES)
    if not sources:
        raise empty_value("images", sources)
    images = tuple(_source(each, f"images[{at}]") for at, each in enumerate(sources))
    mask = _source(raw["mask"], "mask") if "mask" in raw else None
    request = _request(raw, EditImages)
    return msgspec.structs.replace(request, is_edit=True, images=images, mask=mask)


def parse_edit_form(fields: Mapping[str, str]) -> ImagesRequest:
    """Parse the fields of the form of ``POST /images/edits``, which are texts. Raises
    ``InvalidRequest``."""
    if any(name.startswith("svg[") for name in fields):
        raise unsupported_parameter("svg", " Send the request as JSON.")
    raw = {**fields, **read_texts(fields.items(), EditImagesForm)}
    return msgspec.structs.replace(_request(raw, EditImagesForm), is_edit=True)


def _request(raw: JsonObject, cls: type[_Images]) -> ImagesRequest:
    require(raw, "", "prompt")
    for name in _REFUSED:
        if name in raw:
            raise unsupported_parameter(name)
    parsed = convert(raw, cls, "")
    if parsed.stream and parsed.n > 1:
        raise unsupported_value("n", "a stream has one image.")
    options = {name: raw[name] for name in _OPTIONS if name in raw}
    if not parsed.stream:
        options.pop("partial_images", None)
    return ImagesRequest(
        prompt=parsed.prompt,
        n=parsed.n,
        options=convert(options, ImageGeneration, ""),
        stream=parsed.stream,
        as_url=parsed.response_format == "url",
    )


def _source(raw: object, path: str) -> Mapping[str, str]:
    fields = read_object(raw, path)
    found = {name: value for name, value in fields.items() if name in ("image_url", "file_id")}
    if len(found) != 1 or not all(isinstance(value, str) for value in found.values()):
        raise invalid_field(path, "it must have either an image_url or a file_id.")
    return found


# --- answers -------------------------------------------------------------------------------------


def images_answer(request: ImagesRequest, images: Sequence[Any], created: int) -> ImagesAnswer:
    """Build the answer. ``images``: generated images, as the image generator returns them."""
    first = images[0]
    known: Mapping[str, tuple[str, ...]] = {
        "quality": ("low", "medium", "high", "xhigh", "max"),
        "background": ("transparent", "opaque"),
    }
    usage = _sum([each.usage for each in images])
    return ImagesAnswer(
        created=created,
        data=tuple(_data(request, each) for each in images),
        output_format=first.image.format,
        size=first.image.size or UNSET,
        usage=usage or UNSET,
        **{
            name: value
            for name, values in known.items()
            if (value := getattr(first, name)) in values
        },
    )


def _data(request: ImagesRequest, generated: Any) -> ImageData:
    encoded = base64.b64encode(generated.image.content).decode()
    kind = "svg+xml" if generated.image.format == "svg" else generated.image.format
    content = (
        {"url": f"data:image/{kind};base64,{encoded}"} if request.as_url else {"b64_json": encoded}
    )
    return ImageData(revised_prompt=generated.revised_prompt or UNSET, **content)


def _sum(usages: Sequence[Mapping[str, Any]]) -> JsonObject:
    """Add up token counts, which may be nested."""
    total: JsonObject = {}
    for usage in usages:
        for name, value in usage.items():
            if isinstance(value, Mapping):
                total[name] = _sum([total.get(name, {}), value])
            elif isinstance(value, int):
                total[name] = total.get(name, 0) + value
    return total


def image_event(
    request: ImagesRequest, found: Any, created: int, *, index: int | None
) -> ImageEvent:
    """Build an event. ``index``: the number of a preview; None for the image itself."""
    kind = "image_edit" if request.is_edit else "image_generation"
    options = request.options
    fields: JsonObject = {
        "quality": getattr(found, "quality", None) or options.quality or "auto",
        "background": getattr(found, "background", None) or options.background or "auto",
    }
    if index is not None:
        fields["partial_image_index"] = index
    elif found.usage:
        fields["usage"] = dict(found.usage)
    return ImageEvent(
        type=f"{kind}.completed" if index is None else f"{kind}.partial_image",  # type: ignore[arg-type]
        b64_json=base64.b64encode(found.image.content).decode(),
        created_at=created,
        output_format=found.image.format,
        size=found.image.size or "auto",
        **fields,
    )
