"""What requests name besides their text, resolved before a model is asked: images, files, URLs.

A backend behind it gets images as ``data:`` URLs whose bytes are images, and files as text. What
is stored and listed stays as the client sent it: this is done again for each turn.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.attachments.data_urls import InvalidEncoding, decode_inline
from antiphon.attachments.documents import Documents, UnreadableDocument
from antiphon.attachments.fetch import Fetcher, FetchError, FetchResult, check
from antiphon.attachments.image_header import MIMES, InvalidImage, sniff
from antiphon.backends.base import Backend, Reply
from antiphon.backends.wrapper import BackendWrapper
from antiphon.conversation import Conversation, Options
from antiphon.errors import InvalidRequest, NotFound, RequestError, UnreadableImage
from antiphon.resources.files import Files
from antiphon.stream.kinds import KINDS
from antiphon.wire import items as it

__all__ = ["Attachments"]

_Named = it.InputImage | it.InputFile | it.ComputerScreenshot

#: Where a stored prompt's items stand in the request.
_PROMPT = "prompt.variables"

#: The most of one request: bytes of an image and its pixels, bytes of all, URLs, parts.
_IMAGE_BYTES, _PIXELS, _ALL_BYTES, _URLS, _PARTS = 20 * 2**20, 50_000_000, 128 * 2**20, 50, 500


class Attachments:
    """One a service. Without a ``fetcher`` URLs are refused."""

    def __init__(
        self, files: Files, *, fetcher: Fetcher | None = None, documents: Documents | None = None
    ) -> None:
        self.files = files
        self.fetcher = fetcher
        self.documents = documents or Documents()

    def ahead_of(self, backend: Backend, tenant: str, lead: int = 0) -> Backend:
        """The backend as one request asks it. The first ``lead`` items of its conversations come
        from a stored prompt."""
        return _Resolving(self, backend, tenant, lead)


class _Resolving(BackendWrapper):
    """``Backend`` that resolves, then asks. Of one request: what was found once stays found."""

    def __init__(self, around: Attachments, backend: Backend, tenant: str, lead: int) -> None:
        super().__init__(backend)
        self._around = around
        self._tenant = tenant
        self._lead = lead
        self._found: dict[
            tuple[type[Any], Given], it.Part | Bad | FetchError | UnreadableDocument
        ] = {}
        self._bytes = 0

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        """Raises ``RequestError`` with the path of the part for what the request brought and cannot
        be had; in the place of what was there before stands a note."""
        spots = list(self._spots(conversation))
        if not spots:
            return await self._inner.prepare(conversation, options)
        while True:
            filled = replace(conversation, items=await self._filled(conversation, spots))
            try:
                return await self._inner.prepare(filled, options)
            except UnreadableImage as error:
                if not self._blamed(error):
                    raise

    def _blamed(self, error: UnreadableImage) -> bool:
        """Whether the image came with a part, which is from now on known to be broken."""
        encoded = base64.b64encode(error.content).decode()
        for key, found in self._found.items():
            if isinstance(found, it.InputImage) and (found.image_url or "").endswith(f",{encoded}"):
                self._found[key] = Bad("broken", error.why)
                return True
        return False

    def _spots(self, conversation: Conversation) -> Iterator[_Spot]:
        for index, item in enumerate(conversation.items):
            if (parts := _parts(item)) is None:
                continue
            field, found = parts
            for number, part in enumerate(found):
                if isinstance(part, it.InputFile) or (
                    isinstance(part, _IMAGES) and self._inner.capabilities.images
                ):
                    place = f"{field}[{number}]" if isinstance(found, tuple) else field
                    path = self._path(index - conversation.past_count, index, place)
                    yield _Spot(item=index, number=number, part=part, path=path)

    def _path(self, own: int, index: int, place: str) -> str | None:
        """Where a part stands in the request; None: it was there before."""
        if own >= 0:
            return f"input[{own}].{place}"
        return _PROMPT if index < self._lead else None

    async def _filled(self, conversation: Conversation, spots: list[_Spot]) -> tuple[it.Item, ...]:
        if len(spots) > _PARTS:
            raise InvalidRequest(
                f"Too many images and files: at most {_PARTS} in a conversation.", param="input"
            )
        if len({url for spot in spots if (url := url_of(spot.part)) is not None}) > _URLS:
            raise InvalidRequest(
                f"Too many URLs to fetch: at most {_URLS} in a request.", param="input"
            )
        found = await asyncio.gather(
            *(self._resolved(spot) for spot in spots), return_exceptions=True
        )
        items = list(conversation.items)
        for spot, result in zip(spots, found, strict=True):
            if isinstance(result, BaseException):
                raise result
            items[spot.item] = _with(items[spot.item], spot.number, result)
        return tuple(items)

    async def _resolved(self, spot: _Spot) -> it.Part:
        part = spot.part
        try:
            return _detailed(await self._once(part, given_in(part)), part)
        except (Bad, FetchError, UnreadableDocument) as trouble:
            if spot.path is None:
                what = "file" if isinstance(part, it.InputFile) else "image"
                return it.InputText(text=f"[{what} omitted: it can no longer be read]")
            raise _refusal(trouble, part, spot.path) from None

    async def _once(self, part: _Named, given: Given) -> it.Part:
        """What was not found stays so too: a compaction asks many times."""
        key = (type(part), given)
        if key not in self._found:
            try:
                self._found[key] = await self._read(part, given)
            except (Bad, FetchError, UnreadableDocument) as trouble:
                self._found[key] = trouble
        found = self._found[key]
        if isinstance(found, Exception):
            raise found
        return found

    async def _read(self, part: _Named, given: Given) -> it.Part:
        content = await self._content(given)
        self._bytes += len(content.content)
        if self._bytes > _ALL_BYTES:
            raise Bad("large", f"all of a request together may hold {_ALL_BYTES} bytes")
        if isinstance(part, it.InputFile):
            return await self._file(content)
        return await _image(content)

    async def _content(self, given: Given) -> FetchResult:
        """What the part names, whichever way."""
        if given.file_id is not None:
            try:
                kept = await self._around.files.read(self._tenant, given.file_id)
            except NotFound as error:
                raise Bad("unknown", error.message) from None
            return FetchResult(kept.content, "", given.name or kept.file.filename)
        if given.url is not None:
            check(given.url)
            if self._around.fetcher is None:
                raise FetchError("url", "this server fetches no URLs; send the bytes or a file_id")
            fetched = await self._around.fetcher.fetch(given.url)
            return replace(fetched, name=given.name or fetched.name)
        try:
            mime, content = await asyncio.to_thread(decode_inline, given.inline or "")
        except InvalidEncoding as error:
            raise Bad("base64", str(error)) from None
        return FetchResult(content, mime, given.name)

    async def _file(self, file: FetchResult) -> it.Part:
        """A file that is an image is one; of any other the text is read."""
        if not file.content:
            raise Bad("empty", "it is empty")
        try:
            looks = sniff(file.content)
        except InvalidImage:
            looks = None
        if looks is not None:
            return await _image(file)
        text = await self._around.documents.text(file.content, name=file.name, mime=file.mime)
        named = f" '{file.name}'" if file.name else ""
        return it.InputText(text=f"[file{named}]\n{text}")


async def _image(image: FetchResult) -> it.InputImage:
    """Checked, as a data URL that tells what it is."""
    content = image.content
    if not content:
        raise Bad("empty", "it is empty")
    if len(content) > _IMAGE_BYTES:
        raise Bad("large", f"an image may hold {_IMAGE_BYTES} bytes")
    try:
        head = sniff(content)
    except InvalidImage as broken:
        raise Bad("broken", str(broken)) from None
    if head is None:
        raise Bad("format", f"supported are {', '.join(MIMES)}")
    if head.width * head.height > _PIXELS:
        raise Bad("pixels", f"it has {head.width} x {head.height} pixels")
    encoded = await asyncio.to_thread(base64.b64encode, content)
    return it.InputImage(image_url=f"data:{head.mime};base64,{encoded.decode()}")


# --- where parts stand ---------------------------------------------------------------------------


class _Spot(Struct, frozen=True, kw_only=True):
    """A part to resolve. ``path``: where the request has it; None: it was there before."""

    item: int
    number: int
    part: _Named
    path: str | None


_IMAGES = (it.InputImage, it.ComputerScreenshot)


def _parts(item: it.Item) -> tuple[str, tuple[it.Part, ...] | list[it.Part]] | None:
    """The field and its parts; a list where the field holds one part and no array."""
    field = KINDS[type(item)].parts_field
    if not field:
        return None
    value = getattr(item, field)
    if isinstance(value, str):
        return None
    return field, value if isinstance(value, tuple) else [value]


def _with(item: it.Item, number: int, part: it.Part) -> it.Item:
    field = KINDS[type(item)].parts_field
    value = getattr(item, field)
    if isinstance(value, tuple):
        return replace(item, **{field: (*value[:number], part, *value[number + 1 :])})
    if isinstance(part, it.InputImage):
        part = replace(value, image_url=part.image_url, file_id=UNSET)
        return replace(item, **{field: part})
    return replace(item, **{field: replace(value, image_url=UNSET, file_id=UNSET)})


def _detailed(found: it.Part, part: _Named) -> it.Part:
    if isinstance(found, it.InputImage) and part.detail is not UNSET:
        return replace(found, detail=part.detail)
    return found


# --- where the bytes of a part come from ---------------------------------------------------------

Reason = Literal["none", "base64", "unknown", "empty", "large", "pixels", "format", "broken"]


class Bad(Exception):
    """What a part gives cannot be used. ``reason``: one word; the message says more."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class Given(Struct, frozen=True, kw_only=True):
    """One of three, and how the file is called, if it is told."""

    url: str | None = None
    inline: str | None = None
    file_id: str | None = None
    name: str = ""


def given_in(part: it.InputImage | it.InputFile | it.ComputerScreenshot) -> Given:
    """What a part gives. Raises ``Bad`` if it gives nothing."""
    if part.file_id is not UNSET and part.file_id:
        return Given(file_id=part.file_id, name=_filename(part))
    if isinstance(part, it.InputFile):
        if part.file_data is not UNSET and part.file_data:
            return Given(inline=part.file_data, name=_filename(part))
        url = part.file_url
    else:
        url = part.image_url
    if url is UNSET or not url:
        raise Bad("none", "it gives neither bytes nor a URL nor a file_id")
    if url[:5].lower() == "data:":
        return Given(inline=url, name=_filename(part))
    return Given(url=url, name=_filename(part))


def url_of(part: it.InputImage | it.InputFile | it.ComputerScreenshot) -> str | None:
    """The URL that is to be fetched, if there is one."""
    try:
        return given_in(part).url
    except Bad:
        return None


def _filename(part: it.InputImage | it.InputFile | it.ComputerScreenshot) -> str:
    name = part.filename if isinstance(part, it.InputFile) else UNSET
    return "" if name is UNSET else name


# --- what is refused -----------------------------------------------------------------------------

#: What went wrong → the code of OpenAI's API, for images and for files.
_CODES: Mapping[str, tuple[str, str]] = {
    "none": ("invalid_image", "invalid_file"),
    "base64": ("invalid_base64_image", "invalid_file_data"),
    "url": ("invalid_image_url", "invalid_file_url"),
    "unknown": ("image_file_not_found", "file_not_found"),
    "empty": ("empty_image_file", "empty_file"),
    "large": ("image_file_too_large", "file_too_large"),
    "pixels": ("image_too_large", "file_too_large"),
    "format": ("invalid_image_format", "unsupported_file"),
    "broken": ("image_parse_error", "invalid_file"),
    "encrypted": ("invalid_image", "invalid_file"),
    "bomb": ("image_file_too_large", "file_too_large"),
    "long": ("image_file_too_large", "file_too_large"),
    "unsupported": ("invalid_image_format", "unsupported_file"),
    "missing": ("invalid_image_format", "unsupported_file"),
}
_DOWNLOADS = ("failed_to_download_image", "failed_to_download_file")
_READINGS: Mapping[str, str] = {
    "unsupported": "it is neither text nor a document of a known type",
    "missing": "this server reads text files only",
    "encrypted": "it is protected by a password",
    "bomb": "it takes too much to be read",
    "slow": "it takes too long to be read",
    "long": "its text is too long",
    "broken": "it is damaged",
}


def _refusal(
    trouble: Bad | FetchError | UnreadableDocument, part: _Named, path: str
) -> RequestError:
    is_file = isinstance(part, it.InputFile)
    what = "file" if is_file else "image"
    param = path if path == _PROMPT else f"{path}{_field(part, trouble)}"
    if isinstance(trouble, FetchError) and trouble.reason not in ("url", "large"):
        message = f"Error while downloading the {what} of '{param}': {trouble}."
        return InvalidRequest(message, param=param, code=_DOWNLOADS[is_file])
    if trouble.reason == "unknown":
        return NotFound(str(trouble), param=param, code=_CODES["unknown"][is_file])
    code = _CODES.get(trouble.reason, _CODES["bomb"])[is_file]
    reason = _READINGS[trouble.reason] if isinstance(trouble, UnreadableDocument) else str(trouble)
    return InvalidRequest(f"Invalid {what} in '{param}': {reason}.", param=param, code=code)


def _field(part: _Named, trouble: Exception) -> str:
    """The field to blame."""
    if isinstance(trouble, Bad) and trouble.reason == "none":
        return ""
    given = given_in(part)
    if given.file_id is not None:
        return ".file_id"
    if not isinstance(part, it.InputFile):
        return ".image_url"
    return ".file_data" if given.inline is not None else ".file_url"
