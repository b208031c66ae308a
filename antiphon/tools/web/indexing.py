"""Filling an index: files of folders, and pages of the web."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from antiphon.attachments.fetch import Fetcher
from antiphon.errors import SetupError, ToolError

from .index import Document, Index
from .reading import read
from .web import document_of

__all__ = ["Added", "add"]

#: Types of files that are read as pages.
_TYPES = ("text/", "application/json", "application/xhtml+xml")
_LARGEST = 8 * 2**20
_AT_A_TIME = 200


class Added(Struct, frozen=True, kw_only=True):
    """How much was read, and what was not, with the reason."""

    pages: int
    skipped: tuple[str, ...] = ()


async def add(
    index: Index, source: str, *, prefix: str | None = None, fetcher: Fetcher | None = None
) -> Added:
    """Read a URL, a file or all of a folder into the index. ``prefix``: what the URLs of files
    begin with, by default ``file:`` and the folder's name. Raises ``SetupError``."""
    if source.startswith(("http://", "https://")):
        if fetcher is None:
            raise SetupError(f"{source} is not fetched: set fetch_urls")
        try:
            return Added(pages=await index.add([await document_of(source, fetcher)]))
        except ToolError as error:
            return Added(pages=0, skipped=(error.message,))
    path = Path(source).expanduser()
    if not path.exists():
        raise SetupError(f"There is no {source}")
    root = path if path.is_dir() else path.parent
    start = prefix if prefix is not None else f"file:{root.resolve().name}/"
    pages, skipped, batch = 0, [], list[Document]()
    for file in _files(path):
        try:
            batch.append(_document(file, f"{start}{file.relative_to(root).as_posix()}"))
        except ToolError as error:
            skipped.append(error.message)
        if len(batch) >= _AT_A_TIME:
            pages += await index.add(batch)
            batch = []
    return Added(pages=pages + await index.add(batch), skipped=tuple(skipped))


def _files(path: Path) -> Iterator[Path]:
    """The files of a folder that are pages, hidden ones left out, in order."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not hidden and _type(file).startswith(_TYPES):
            yield file


def _type(file: Path) -> str:
    found, _ = mimetypes.guess_type(file.name)
    return found or ("text/plain" if file.suffix in (".md", ".rst", ".adoc") else "")


def _document(file: Path, url: str) -> Document:
    try:
        if file.stat().st_size > _LARGEST:
            raise ToolError(f"{url} is too large.")
        content = file.read_bytes()
    except OSError as error:
        raise ToolError(f"{url} cannot be read: {error.strerror}.") from None
    found = read(url, content, _type(file))
    return found if found.title else Document(url=url, title=file.stem, text=found.text)
