"""Filling an index: files of folders, and pages of the web."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Fetcher
from antiphon.errors import SetupError, ToolError

from .extract import extract_document
from .index import PageDocument, PageIndex
from .live_web import fetch_document

__all__ = ["IndexReport", "add_source"]

#: Types of files that are read as pages.
_TYPES = (
    "text/",
    "application/json",
    "application/xhtml+xml",
    "application/pdf",
    "application/rtf",
    "application/msword",
    "application/epub+zip",
    "application/vnd.openxmlformats-officedocument.",
    "application/vnd.oasis.opendocument.",
    "application/vnd.ms-excel",
    "application/vnd.ms-powerpoint",
)
_MAX_FILE_BYTES = 32 * 2**20
_BATCH_SIZE = 50


class IndexReport(Struct, frozen=True, kw_only=True):
    """How many pages were read, how many are gone since the last time, and what was not read, with
    the reason."""

    pages: int
    removed: int = 0
    skipped: tuple[str, ...] = ()


async def add_source(
    index: PageIndex,
    source: str,
    *,
    documents: Documents,
    prefix: str | None = None,
    fetcher: Fetcher | None = None,
) -> IndexReport:
    """Read a URL, a file or all of a folder into the index; what was read from there before and is
    there no more is forgotten. ``prefix``: what the URLs of files begin with, by default ``file:``
    and the folder's name. Raises ``SetupError``."""
    if source.startswith(("http://", "https://")):
        if fetcher is None:
            raise SetupError(f"{source} is not fetched: set fetch_urls")
        try:
            return IndexReport(
                pages=await index.add([await fetch_document(source, fetcher, documents)])
            )
        except ToolError as error:
            return IndexReport(pages=0, skipped=(error.message,))
    path = Path(source).expanduser()
    if not path.exists():
        raise SetupError(f"There is no {source}")
    path = path.resolve()
    root = path if path.is_dir() else path.parent
    start = prefix if prefix is not None else f"file:{root.name}/"
    urls, skipped, batch = set[str](), [], list[PageDocument]()
    for file in _page_files(path):
        url = f"{start}{file.relative_to(root).as_posix()}"
        try:
            batch.append(await _read_document(file, url, documents))
            urls.add(url)
        except ToolError as error:
            skipped.append(error.message)
        if len(batch) >= _BATCH_SIZE:
            await index.add(batch, str(path))
            batch = []
    await index.add(batch, str(path))
    gone = await index.remove_missing(str(path), urls)
    return IndexReport(pages=len(urls), removed=gone, skipped=tuple(skipped))


def _page_files(path: Path) -> Iterator[Path]:
    """The files of a folder that are pages, hidden ones left out, in order."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not hidden and _mime_type(file).startswith(_TYPES):
            yield file


def _mime_type(file: Path) -> str:
    found, _ = mimetypes.guess_type(file.name)
    return found or ("text/plain" if file.suffix in (".md", ".rst", ".adoc") else "")


async def _read_document(file: Path, url: str, documents: Documents) -> PageDocument:
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise ToolError(f"{url} is larger than {_MAX_FILE_BYTES >> 20} MB.")
        content = file.read_bytes()
    except OSError as error:
        raise ToolError(f"{url} cannot be read: {error.strerror}.") from None
    found = await extract_document(url, content, _mime_type(file), documents)
    if found.title:
        return found
    return PageDocument(url=url, title=file.stem, text=found.text, links=found.links)
