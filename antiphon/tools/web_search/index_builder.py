"""Fill a page index with the files of folders and with pages of the web."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Fetcher
from antiphon.errors import SetupError, ToolError
from antiphon.support.installation import needs_extra

from .extract import extract_document
from .index import PageDocument, PageIndex
from .live_web import fetch_document

#: MIME types of the files that are indexed.
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
    """The result of adding a source to the index.

    - ``pages``: number of indexed pages.
    - ``removed_count``: number of pages that were removed from the index.
    - ``skip_reasons``: for each skipped page, a message with the reason.
    """

    pages: int
    removed_count: int = 0
    skip_reasons: tuple[str, ...] = ()


async def add_source(
    index: PageIndex,
    source: str,
    *,
    documents: Documents,
    prefix: str | None = None,
    fetcher: Fetcher | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> IndexReport:
    """Add a web page, a file or all files of a folder to the index. ``source``: a URL or a path.
    Pages that a file or folder no longer contains are removed.

    - ``prefix``: beginning of the URLs under which files are indexed. By default, it is ``file:``
      and the folder's name.
    - ``progress``: called with the number of processed files and the total number of files.

    Raises ``SetupError``.
    """
    if source.startswith(("http://", "https://")):
        if fetcher is None:
            if find_spec("aiohttp") is None:
                raise SetupError(needs_extra(f"{source} cannot be fetched", "fetch"))
            raise SetupError(f"{source} cannot be fetched: the setting fetch_urls is false")
        try:
            return IndexReport(
                pages=await index.add([await fetch_document(source, fetcher, documents)])
            )
        except ToolError as error:
            return IndexReport(pages=0, skip_reasons=(error.message,))
    path = Path(source).expanduser()
    if not path.exists():
        raise SetupError(f"{source} does not exist")
    path = path.resolve()
    root = path if path.is_dir() else path.parent
    start = prefix if prefix is not None else f"file:{root.name}/"
    urls, skipped, batch = set[str](), [], list[PageDocument]()
    files = tuple(_page_files(path))
    for number, file in enumerate(files):
        progress(number, len(files))
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
    progress(len(files), len(files))
    removed = await index.remove_missing(str(path), urls)
    return IndexReport(pages=len(urls), removed_count=removed, skip_reasons=tuple(skipped))


def _page_files(path: Path) -> Iterator[Path]:
    """Yield the files below a folder that can be indexed, in order. Hidden files are left out. If
    ``path`` is a file, yield this file."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not hidden and _mime_type(file).startswith(_TYPES):
            yield file


def _mime_type(file: Path) -> str:
    document, _ = mimetypes.guess_type(file.name)
    return document or ("text/plain" if file.suffix in (".md", ".rst", ".adoc") else "")


async def _read_document(file: Path, url: str, documents: Documents) -> PageDocument:
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise ToolError(f"{url} is larger than {_MAX_FILE_BYTES >> 20} MB.")
        content = file.read_bytes()
    except OSError as error:
        raise ToolError(f"{url} cannot be read: {error.strerror}.") from None
    document = await extract_document(url, content, _mime_type(file), documents)
    return document if document.title else replace(document, title=file.stem)
