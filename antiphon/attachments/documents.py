"""Extract the text of documents (PDF, office and web formats) and of web pages, and render the
pages of PDFs. This is done in a separate process or in a sandbox.

Plain text is decoded in this process.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import structlog
from msgspec import Struct

from antiphon.ipc.worker_process import WorkerFailed, run_worker
from antiphon.support.fair_limiter import FairLimiter

from .document_worker import PAGE_IMAGES, PAGE_TEXTS, WEB_PAGE

_log = structlog.get_logger(__name__)

Reason = Literal["unsupported", "missing", "encrypted", "bomb", "broken", "slow", "long", "pages"]

#: The program that extracts the text of one document.
WORKER = Path(__file__).with_name("document_worker.py")
#: Maximum number of characters of a document's text. This is OpenAI's limit for text in a request.
_MAX_CHARS = 10_485_760
#: Maximum number of base64 characters of all page images of a document.
_MAX_PAGES_CHARS = 64 * 2**20
_TIMEOUT_S = 30.0
_MAX_CONCURRENT = 2
#: Maximum number of characters in the cache of texts and page images. Results are cached because
#: the next request of a conversation usually contains the same documents.
_CACHE_CHARS = 16 * 2**20

PDF_MAGIC = b"%PDF-"
#: First bytes of the formats that need the library. A content with other first bytes is text or has
#: an unknown format.
_MAGIC = (PDF_MAGIC, b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"{\\rtf")
#: File extension → media type. These are formats that cannot be recognized from the content alone,
#: and text formats that the library reads.
_KINDS = {
    "html": "text/html",
    "htm": "text/html",
    "xhtml": "text/html",
    "rtf": "application/rtf",
    "doc": "application/msword",
    "xls": "application/vnd.ms-excel",
    "ppt": "application/vnd.ms-powerpoint",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "odt": "application/vnd.oasis.opendocument.text",
    "ods": "application/vnd.oasis.opendocument.spreadsheet",
    "epub": "application/epub+zip",
}
_MARKUP = ("text/html", "application/xhtml+xml")


class UnreadableDocument(Exception):
    """Error for a document whose text cannot be read. ``reason``: the reason as one word."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class WebPageText(Struct, frozen=True):
    """The title and the main text of a web page. HTML entities in ``title`` are not decoded.
    ``text`` is Markdown."""

    title: str
    text: str


class _WorkerOutput(Struct, frozen=True):
    """The output of the worker program (``document_worker``) for one document: its text, images of
    its pages, or the kind of error."""

    text: str | None = None
    title: str = ""
    pages: tuple[str, ...] | None = None
    error: Literal["missing", "encrypted", "bomb", "unsupported", "broken", "pages"] | None = None

    @property
    def size(self) -> int:
        """The length of the text plus the lengths of all pages in base64, in characters."""
        return len(self.text or "") + sum(map(len, self.pages or ()))


def plain_text(content: bytes) -> str | None:
    """Decode ``content`` as UTF-16 if it begins with a BOM of UTF-16, otherwise as UTF-8. Returns
    None if the content is not text."""
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


class DocumentReader(Protocol):
    """Runs the worker program, which extracts the text of a document (``document_worker``). The
    program runs in a subprocess or in a sandbox."""

    async def read(self, content: bytes, kind: str, *, max_chars: int, timeout_s: float) -> bytes:
        """Return what the worker program printed for a document. ``kind`` and ``max_chars`` are
        passed to the program, see ``document_worker.main``.

        Raises ``UnreadableDocument`` if the worker needs more than ``timeout_s`` seconds or exceeds
        another limit.
        """


class ProcessReader:
    """``DocumentReader`` that runs the worker program (``WORKER``) in a subprocess. The subprocess
    has resource limits and a private folder."""

    async def read(self, content: bytes, kind: str, *, max_chars: int, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return await run_worker(WORKER, kind, str(max_chars), content=content)
        except TimeoutError:
            raise UnreadableDocument("slow") from None
        except WorkerFailed:  # killed at a limit
            raise UnreadableDocument("bomb") from None
        except OSError as error:
            _log.error("document reader could not start", reason=str(error))
            raise UnreadableDocument("missing") from None


class Documents:
    """Extracts the texts of documents and web pages, and renders pages of PDFs. Two documents are
    processed at a time. If documents have to wait, tenants take turns. Create one instance per
    server.

    ``reader`` processes documents, and ``page_reader`` processes web pages. The default for both is
    ``ProcessReader``.
    """

    def __init__(
        self,
        reader: DocumentReader | None = None,
        *,
        page_reader: DocumentReader | None = None,
        timeout_s: float = _TIMEOUT_S,
        max_chars: int = _MAX_CHARS,
    ) -> None:
        self._reader = reader or ProcessReader()
        self._page_reader = page_reader or ProcessReader()
        self._timeout_s = timeout_s
        self._max_chars = max_chars
        self._slots = FairLimiter(_MAX_CONCURRENT)
        self._cached: OrderedDict[tuple[str, bytes], _WorkerOutput] = OrderedDict()
        self._cached_chars = 0

    async def text(
        self, content: bytes, *, name: str = "", mime: str = "", tenant: str = ""
    ) -> str:
        """Return the text of a document. ``name``: its file name. ``mime``: its declared media
        type.

        If the name or the media type does not fit the content, the format is detected from the
        content. Raises ``UnreadableDocument``.
        """
        kind = _kind(content, name, mime)
        if kind is None:
            text = await asyncio.to_thread(plain_text, content)
            if text is None:
                raise UnreadableDocument("unsupported")
            return self._check_length(text)
        return (await self._extract(content, kind, tenant)).text or ""

    async def web_page(self, content: bytes, *, tenant: str = "") -> WebPageText:
        """Return the main text of a web page. Raises ``UnreadableDocument``."""
        page = await self._extract(content, WEB_PAGE, tenant)
        return WebPageText(page.title, page.text or "")

    async def page_images(self, content: bytes, *, tenant: str = "") -> tuple[str, ...]:
        """Return one image for each page of a PDF, as PNG in base64. Raises
        ``UnreadableDocument``."""
        return (await self._extract(content, PAGE_IMAGES, tenant)).pages or ()

    async def page_texts(self, content: bytes, *, tenant: str = "") -> tuple[str, ...]:
        """Return the text of each page of a PDF. Raises ``UnreadableDocument``."""
        return (await self._extract(content, PAGE_TEXTS, tenant)).pages or ()

    async def _extract(self, content: bytes, kind: str, tenant: str) -> _WorkerOutput:
        key = (kind, (await asyncio.to_thread(sha256, content)).digest())
        cached = self._cached.get(key)
        if cached is not None:
            self._cached.move_to_end(key)
            return cached
        async with self._slots.slot(tenant):
            extracted = await self._read(content, kind)
        self._check_length(extracted.text or "")
        self._cache(key, extracted)
        return extracted

    def _check_length(self, text: str) -> str:
        if len(text) > self._max_chars:
            raise UnreadableDocument("long")
        return text

    def _cache(self, key: tuple[str, bytes], extracted: _WorkerOutput) -> None:
        if extracted.size > _CACHE_CHARS:
            return
        replaced = self._cached.pop(key, None)
        self._cached_chars += extracted.size - (replaced.size if replaced else 0)
        self._cached[key] = extracted
        while self._cached_chars > _CACHE_CHARS:
            self._cached_chars -= self._cached.popitem(last=False)[1].size

    async def _read(self, content: bytes, kind: str) -> _WorkerOutput:
        is_page = kind == WEB_PAGE
        if find_spec("trafilatura" if is_page else "kreuzberg") is None:
            raise UnreadableDocument("missing")
        reader = self._page_reader if is_page else self._reader
        output = await reader.read(
            content,
            kind,
            max_chars=_MAX_PAGES_CHARS if kind == PAGE_IMAGES else self._max_chars,
            timeout_s=self._timeout_s,
        )
        try:
            result = msgspec.json.decode(output, type=_WorkerOutput)
        except msgspec.DecodeError:
            raise UnreadableDocument("broken") from None
        if (result.pages if kind in (PAGE_IMAGES, PAGE_TEXTS) else result.text) is None:
            raise UnreadableDocument(result.error or "broken")
        return result


def _kind(content: bytes, name: str, mime: str) -> str | None:
    """Return the media type of a document. The library that extracts the text needs this type.

    Returns "" if the library must detect the type. Returns None if the library does not read the
    content, because the content is plain text or has an unknown format. ``name``: the file name.
    ``mime``: the declared media type.
    """
    by_name = _KINDS.get(name.rpartition(".")[2].lower(), "") if "." in name else ""
    if content.startswith(PDF_MAGIC):
        return "application/pdf"
    if content.startswith(_MAGIC):
        return by_name if by_name not in _MARKUP else ""
    if by_name in _MARKUP or mime in _MARKUP:
        return "text/html"
    return None
