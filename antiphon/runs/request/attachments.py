"""Attachments: resolves the images, files and URLs of a conversation before the model is called.

The backend gets images as ``data:`` URLs with checked bytes, and files as text. If the request asks
for high detail, it also gets the pages of a PDF as images. In the store, items stay as the client
sent them, so their attachments are resolved again for each turn.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.attachments.data_urls import InvalidEncoding, decode_inline
from antiphon.attachments.document_worker import MAX_PAGES
from antiphon.attachments.documents import PDF_MAGIC, Documents, UnreadableDocument
from antiphon.attachments.fetch import Fetcher, FetchError, FetchResult, check
from antiphon.attachments.image_header import MIMES, InvalidImage, sniff
from antiphon.backends.base import Backend, BackendCapabilities, Reply
from antiphon.backends.wrapper import BackendWrapper
from antiphon.errors import InvalidRequest, NotFound, RequestError, TooLarge, UnreadableImage
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.encoded_items import select
from antiphon.resources.audio import Audio
from antiphon.resources.file_storage.files import Files
from antiphon.stream.kinds import KINDS, parts_of
from antiphon.support.installation import needs_extra
from antiphon.wire import items as it

from .omitted_parts import part_paths

_AttachmentPart = it.InputImage | it.InputFile | it.ComputerScreenshot | it.InputAudio

#: The path of a stored prompt's items in the request.
_PROMPT_PATH = "prompt.variables"

_MAX_IMAGE_BYTES = 20 * 2**20
_MAX_PIXELS = 50_000_000
#: Limits of one request: bytes of all images and files, URLs to fetch, images and files.
_MAX_TOTAL_BYTES, _MAX_URLS, _MAX_PARTS = 128 * 2**20, 50, 500


class Attachments:
    """Resolves attachments: replaces references to images and files, such as URLs and file ids,
    with their content. ``fetcher``: fetches URLs. If it is None, URLs are rejected. ``audio``
    writes down recordings for models that cannot hear, if it has a model for this."""

    def __init__(
        self,
        files: Files,
        audio: Audio | None = None,
        fetcher: Fetcher | None = None,
        documents: Documents | None = None,
    ) -> None:
        self.files = files
        self.audio = audio
        self.fetcher = fetcher
        self.documents = documents or Documents()

    def writes_down(self, backend: Backend) -> bool:
        """Return whether recordings become texts, because the model cannot hear."""
        is_possible = self.audio is not None and self.audio.input_model is not None
        return is_possible and not backend.capabilities.hears

    def capabilities(self, backend: Backend) -> BackendCapabilities:
        """Return what a backend can do with the attachments of this server."""
        capabilities = backend.capabilities
        return (
            replace(capabilities, audio_video=True) if self.writes_down(backend) else capabilities
        )

    async def document_text(
        self, tenant: str, part: it.InputFile, path: str
    ) -> str | tuple[str, ...]:
        """Return the text of a document, or the texts of the pages of a PDF. ``path``: the path of
        the part in the request. Raises ``RequestError``."""
        try:
            file = await self.load(tenant, part_source(part))
            if file.content.startswith(PDF_MAGIC):
                return await self.documents.page_texts(file.content, tenant=tenant)
            return await self.documents.text(
                file.content, name=file.name, mime=file.mime, tenant=tenant
            )
        except (InvalidPart, FetchError, UnreadableDocument) as error:
            raise _refusal(error, part, path) from None

    async def load(self, tenant: str, source: PartSource) -> FetchResult:
        """Load the bytes of a part from a file, a URL or inline data. Raises ``InvalidPart`` and
        ``FetchError``."""
        if source.file_id is not None:
            try:
                stored = await self.files.read(tenant, source.file_id)
            except NotFound as error:
                raise InvalidPart("unknown", error.message) from None
            except TooLarge as error:
                raise InvalidPart("large", error.message) from None
            return FetchResult(stored.content, "", source.name or stored.file.filename)
        if source.url is not None:
            check(source.url)
            if self.fetcher is None:
                raise FetchError("url", "this server fetches no URLs; send the bytes or a file_id")
            fetched = await self.fetcher.fetch(source.url, tenant=tenant)
            return replace(fetched, name=source.name or fetched.name)
        try:
            mime, content = await asyncio.to_thread(decode_inline, source.inline or "")
        except InvalidEncoding as error:
            raise InvalidPart("base64", str(error)) from None
        return FetchResult(content, mime, source.name)

    def resolving_backend(
        self, backend: Backend, tenant: str, prompt_item_count: int = 0
    ) -> Backend:
        """Return a backend for one request. It resolves the attachments of the conversation, and
        then calls ``backend``. ``prompt_item_count``: how many items at the beginning of the
        request's conversation come from a stored prompt."""
        return _ResolvingBackend(self, backend, tenant, prompt_item_count)


class _ResolvingBackend(BackendWrapper):
    """``Backend`` that resolves the attachments of a conversation before it calls the wrapped
    backend. Belongs to one request. Results are cached for this request."""

    def __init__(
        self, attachments: Attachments, backend: Backend, tenant: str, prompt_item_count: int
    ) -> None:
        super().__init__(backend)
        self._attachments = attachments
        self._tenant = tenant
        self._prompt_item_count = prompt_item_count
        self._parts_by_source: dict[
            tuple[type[Any], PartSource, bool],
            tuple[it.Part, ...] | InvalidPart | FetchError | UnreadableDocument,
        ] = {}
        self._bytes = 0

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._attachments.capabilities(self._inner)

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        """Resolve the attachments, then prepare the reply.

        If an attachment of the request cannot be read, this method raises ``RequestError`` with the
        path of the part. If an attachment of an earlier turn cannot be read, a note replaces it.
        """
        locations = list(self._locations(conversation))
        if not locations:
            return await self._inner.prepare(conversation, options)
        while True:
            filled = replace(conversation, items=await self._resolve_all(conversation, locations))
            try:
                return await self._inner.prepare(filled, options)
            except UnreadableImage as error:
                if not self._mark_invalid(error):
                    raise

    def _mark_invalid(self, error: UnreadableImage) -> bool:
        """Record that an image is invalid, because the backend could not read it. Return whether a
        part of the conversation contains the image."""
        encoded = base64.b64encode(error.content).decode()
        for key, resolved in self._parts_by_source.items():
            if isinstance(resolved, tuple) and any(
                isinstance(part, it.InputImage) and (part.image_url or "").endswith(f",{encoded}")
                for part in resolved
            ):
                self._parts_by_source[key] = InvalidPart("broken", error.reason)
                return True
        return False

    def _locations(self, conversation: Conversation) -> Iterator[_Location]:
        for index in select(conversation.items, _has_attachment, conversation.encoded):
            for number, (part_path, part) in enumerate(part_paths(conversation.items[index])):
                if type(part) not in _ATTACHMENTS:
                    continue
                if (
                    isinstance(part, it.InputFile)
                    or (isinstance(part, _IMAGES) and self._inner.capabilities.images)
                    or (
                        isinstance(part, it.InputAudio)
                        and self._attachments.writes_down(self._inner)
                    )
                ):
                    path = self._path(index - conversation.past_count, index, part_path)
                    yield _Location(item=index, number=number, part=part, path=path)

    def _path(self, input_index: int, index: int, part_path: str) -> str | None:
        """Return the path of a part in the request, for error messages. Returns None if the part is
        in an item of an earlier turn. If the part is in a stored prompt, the path is always
        ``_PROMPT_PATH``.

        ``input_index``: the index of the part's item in the request's input; negative if the item
        is not in the input. ``index``: the index of the item in the conversation. ``part_path``:
        the path of the part in its item.
        """
        if input_index >= 0:
            return f"input[{input_index}].{part_path}"
        return _PROMPT_PATH if index < self._prompt_item_count else None

    async def _resolve_all(
        self, conversation: Conversation, locations: list[_Location]
    ) -> tuple[it.Item, ...]:
        if len(locations) > _MAX_PARTS:
            raise InvalidRequest(
                f"Too many images and files: at most {_MAX_PARTS} in a conversation.", param="input"
            )
        if (
            len({url for location in locations if (url := url_to_fetch(location.part)) is not None})
            > _MAX_URLS
        ):
            raise InvalidRequest(
                f"Too many URLs to fetch: at most {_MAX_URLS} in a request.", param="input"
            )
        resolved: list[tuple[it.Part, ...]] = []
        for result in await asyncio.gather(
            *(self._resolve(location) for location in locations), return_exceptions=True
        ):
            if isinstance(result, BaseException):
                raise result
            resolved.append(result)
        items = list(conversation.items)
        # The last part is replaced first: a file may become several parts, which moves later parts.
        for location, parts in reversed(list(zip(locations, resolved, strict=True))):
            items[location.item] = _replace_part(items[location.item], location.number, parts)
        return tuple(items)

    async def _resolve(self, location: _Location) -> tuple[it.Part, ...]:
        part = location.part
        try:
            resolved = await self._resolve_cached(part, part_source(part))
        except (InvalidPart, FetchError, UnreadableDocument) as error:
            if location.path is None:
                what = _name(part)
                return (it.InputText(text=f"[{what} omitted: it can no longer be read]"),)
            raise _refusal(error, part, location.path) from None
        return tuple(_with_detail(each, part) for each in resolved)

    async def _resolve_cached(
        self, part: _AttachmentPart, source: PartSource
    ) -> tuple[it.Part, ...]:
        """Resolve a part, or return the cached result of an earlier call. There are several calls
        for the same part if a compaction renders the conversation several times. Failures are
        cached too, so that a failed attempt is not repeated."""
        with_pages = self._shows_pages(part)
        key = (type(part), source, with_pages)
        if key not in self._parts_by_source:
            try:
                self._parts_by_source[key] = await self._load_parts(part, source, with_pages)
            except (InvalidPart, FetchError, UnreadableDocument) as error:
                self._parts_by_source[key] = error
        resolved = self._parts_by_source[key]
        if isinstance(resolved, Exception):
            raise resolved
        return resolved

    def _shows_pages(self, part: _AttachmentPart) -> bool:
        """Whether the model sees the pages of a PDF as images, besides its text."""
        if not isinstance(part, it.InputFile):
            return False
        return part.detail == "high" and self._inner.capabilities.images

    async def _load_parts(
        self, part: _AttachmentPart, source: PartSource, with_pages: bool
    ) -> tuple[it.Part, ...]:
        content = await self._attachments.load(self._tenant, source)
        self._count_bytes(len(content.content))
        if isinstance(part, it.InputAudio):
            return (await self._recording(content.content),)
        if not isinstance(part, it.InputFile):
            return (await image_part(content),)
        file = await self._file_part(content)
        if not with_pages or not content.content.startswith(PDF_MAGIC):
            return (file,)
        documents = self._attachments.documents
        pages = await documents.page_images(content.content, tenant=self._tenant)
        self._count_bytes(sum(map(len, pages)))
        urls = (f"data:image/png;base64,{page}" for page in pages)
        return (file, *(it.InputImage(image_url=url) for url in urls))

    def _count_bytes(self, count: int) -> None:
        self._bytes += count
        if self._bytes > _MAX_TOTAL_BYTES:
            raise InvalidPart(
                "large",
                "all images and files of a request together may have at most"
                f" {_MAX_TOTAL_BYTES} bytes",
            )

    async def _recording(self, content: bytes) -> it.InputText:
        """Return the transcript of a recording."""
        if not content:
            raise InvalidPart("empty", "it is empty")
        audio = self._attachments.audio
        assert audio is not None
        try:
            text = await audio.input_text(content, tenant=self._tenant)
        except (InvalidRequest, TooLarge) as error:
            raise InvalidPart("broken", error.message.rstrip(".")) from None
        return it.InputText(text=text)

    async def _file_part(self, file: FetchResult) -> it.Part:
        """Return the content of a file as an image if the file is an image. Otherwise return its
        text."""
        if not file.content:
            raise InvalidPart("empty", "it is empty")
        try:
            header = sniff(file.content)
        except InvalidImage:
            header = None
        if header is not None:
            return await image_part(file)
        text = await self._attachments.documents.text(
            file.content, name=file.name, mime=file.mime, tenant=self._tenant
        )
        title = f" '{file.name}'" if file.name else ""
        return it.InputText(text=f"[file{title}]\n{text}")


async def image_part(image: FetchResult) -> it.InputImage:
    """Check an image and return it as a data URL. Its media type is detected from the bytes. Raises
    ``InvalidPart``."""
    content = image.content
    if not content:
        raise InvalidPart("empty", "it is empty")
    if len(content) > _MAX_IMAGE_BYTES:
        raise InvalidPart("large", f"an image may have at most {_MAX_IMAGE_BYTES} bytes")
    try:
        head = sniff(content)
    except InvalidImage as broken:
        raise InvalidPart("broken", str(broken)) from None
    if head is None:
        raise InvalidPart("format", f"the supported formats are {', '.join(MIMES)}")
    if head.width * head.height > _MAX_PIXELS:
        raise InvalidPart("pixels", f"it has {head.width} x {head.height} pixels")
    encoded = await asyncio.to_thread(base64.b64encode, content)
    return it.InputImage(image_url=f"data:{head.mime};base64,{encoded.decode()}")


# --- parts in items ------------------------------------------------------------------------------


class _Location(Struct, frozen=True, kw_only=True):
    """A part (an image or a file) whose content must be loaded, and its place. ``item``: the index
    of the item that contains the part. ``number``: the index of the part in this item. ``path``:
    the path of the part in the request; None if the part belongs to an earlier item."""

    item: int
    number: int
    part: _AttachmentPart
    path: str | None


_IMAGES = (it.InputImage, it.ComputerScreenshot)
_ATTACHMENTS = frozenset({it.InputAudio, it.InputFile, *_IMAGES})


def _has_attachment(item: it.Item) -> bool:
    return not _ATTACHMENTS.isdisjoint(map(type, parts_of(item)))


def _replace_part(item: it.Item, number: int, parts: tuple[it.Part, ...]) -> it.Item:
    field = KINDS[type(item)].parts_field
    value = getattr(item, field)
    if isinstance(value, tuple):
        return replace(item, **{field: (*value[:number], *parts, *value[number + 1 :])})
    [part] = parts  # the field holds a single image
    if isinstance(part, it.InputImage):
        part = replace(value, image_url=part.image_url, file_id=UNSET)
        return replace(item, **{field: part})
    return replace(item, **{field: replace(value, image_url=UNSET, file_id=UNSET)})


def _with_detail(resolved: it.Part, part: _AttachmentPart) -> it.Part:
    if (
        isinstance(resolved, it.InputImage)
        and not isinstance(part, it.InputAudio)
        and part.detail is not UNSET
    ):
        return replace(resolved, detail=part.detail)
    return resolved


# --- where the bytes of a part come from ---------------------------------------------------------

Reason = Literal["none", "base64", "unknown", "empty", "large", "pixels", "format", "broken"]


class InvalidPart(Exception):
    """Raised for an image or file that cannot be used. ``reason``: a key of ``ERROR_CODES``."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class PartSource(Struct, frozen=True, kw_only=True):
    """The source of a part's bytes. Exactly one of ``url``, ``inline`` and ``file_id`` is set.
    ``name``: the filename, if it is known."""

    url: str | None = None
    inline: str | None = None
    file_id: str | None = None
    name: str = ""


def part_source(part: _AttachmentPart) -> PartSource:
    """Return the source of a part's bytes: a URL, inline data or the id of a stored file. Raises
    ``InvalidPart`` if the part has none of them."""
    if isinstance(part, it.InputAudio):
        data = part.input_audio.get("data")
        if not isinstance(data, str) or not data:
            raise InvalidPart("none", "it contains no data")
        return PartSource(inline=data)
    if part.file_id is not UNSET and part.file_id:
        return PartSource(file_id=part.file_id, name=_filename(part))
    if isinstance(part, it.InputFile):
        if part.file_data is not UNSET and part.file_data:
            return PartSource(inline=part.file_data, name=_filename(part))
        url = part.file_url
    else:
        url = part.image_url
    if url is UNSET or not url:
        raise InvalidPart("none", "it contains no data, no URL and no file_id")
    if url[:5].lower() == "data:":
        return PartSource(inline=url, name=_filename(part))
    return PartSource(url=url, name=_filename(part))


def url_to_fetch(part: _AttachmentPart) -> str | None:
    """Return the URL from which the bytes of a part have to be fetched. Returns None if the part
    has its bytes in itself or in a stored file."""
    try:
        return part_source(part).url
    except InvalidPart:
        return None


def _filename(part: _AttachmentPart) -> str:
    name = part.filename if isinstance(part, it.InputFile) else UNSET
    return "" if name is UNSET else name


# --- errors --------------------------------------------------------------------------------------

#: Reason → error code of OpenAI's API, for images and for files.
ERROR_CODES: Mapping[str, tuple[str, str]] = {
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
    "pages": ("image_file_too_large", "file_too_large"),
    "unsupported": ("invalid_image_format", "unsupported_file"),
    "missing": ("invalid_image_format", "unsupported_file"),
}
DOWNLOAD_CODES = ("failed_to_download_image", "failed_to_download_file")
_DOCUMENT_ERRORS: Mapping[str, str] = {
    "unsupported": "it is neither text nor a document of a known type",
    "encrypted": "it is protected by a password",
    "bomb": "reading it needs too much memory or disk space",
    "slow": "reading it takes too long",
    "long": "its text is too long",
    "pages": f"with detail 'high', it may have at most {MAX_PAGES} pages",
    "broken": "it is damaged",
}


def _refusal(
    error: InvalidPart | FetchError | UnreadableDocument, part: _AttachmentPart, path: str
) -> RequestError:
    is_file = not isinstance(part, _IMAGES)
    what = _name(part)
    param = path if path == _PROMPT_PATH else f"{path}{_field(part, error)}"
    if isinstance(error, FetchError) and error.reason not in ("url", "large"):
        message = f"Error while downloading the {what} of '{param}': {error}."
        return InvalidRequest(message, param=param, code=DOWNLOAD_CODES[is_file])
    if error.reason == "unknown":
        return NotFound(str(error), param=param, code=ERROR_CODES["unknown"][is_file])
    code = ERROR_CODES.get(error.reason, ERROR_CODES["bomb"])[is_file]
    reason = _document_error(error) if isinstance(error, UnreadableDocument) else str(error)
    return InvalidRequest(f"Invalid {what} in '{param}': {reason}.", param=param, code=code)


def _name(part: _AttachmentPart) -> str:
    """Return what a part is, for messages."""
    return {it.InputFile: "file", it.InputAudio: "recording"}.get(type(part), "image")


def _field(part: _AttachmentPart, error: Exception) -> str:
    """Return the path of the faulty field within the part, such as ``.file_url``. Returns an empty
    string if the part contains no data, no URL and no file id."""
    if isinstance(error, InvalidPart) and error.reason == "none":
        return ""
    if isinstance(part, it.InputAudio):
        return ".input_audio.data"
    source = part_source(part)
    if source.file_id is not None:
        return ".file_id"
    if not isinstance(part, it.InputFile):
        return ".image_url"
    return ".file_data" if source.inline is not None else ".file_url"


def _document_error(error: UnreadableDocument) -> str:
    if error.reason == "missing":
        return needs_extra("this server reads text files only", "documents")
    return _DOCUMENT_ERRORS[error.reason]
