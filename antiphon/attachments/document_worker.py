"""Program that processes one document in a separate process and prints the result as JSON. It
extracts the text of a document or web page, or renders the pages of a PDF.

The server starts the program by its path. The process has limits on memory and time, cannot write
files, does not get the server's secrets, and never parses as root, so a hostile file can only harm
this process.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import re
import sys
import tempfile
from contextlib import suppress
from encodings import aliases

#: Value of ``kind`` for a web page. Its main text is extracted, with links. Other values, besides
#: ``PAGE_IMAGES``, are media types of documents. Their whole text is extracted.
WEB_PAGE = "web page"
#: Value of ``kind`` for a PDF whose pages are rendered as images. Its text is not extracted.
PAGE_IMAGES = "page images"
#: Value of ``kind`` for a PDF whose text is extracted page by page.
PAGE_TEXTS = "page texts"

#: Maximum number of pages of a PDF that is rendered.
MAX_PAGES = 50
#: Resolution of rendered pages. A page of A4 has 910 x 1287 pixels, and text of 8 points is
#: readable. Image encoders of models would only scale down larger images.
_PAGE_DPI = 110

#: A PDF with one empty page.
_EMPTY_PDF = (
    b"%PDF-1.1\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj"
    b" 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj"
    b" 3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj trailer<</Root 1 0 R>>"
)
_MEMORY, _CPU_SECONDS, _OPEN_FILES = 2 * 2**30, 60, 64
_TITLE_START = re.compile(r"<title[^<>]*>", re.IGNORECASE)
_TITLE_END = re.compile(r"</title", re.IGNORECASE)
_MAX_TITLE_CHARS = 1_000
#: User id to which the process changes before it parses, if the server runs as root. No other
#: program uses this id, so the user owns no files.
_UID = 64002
#: Option of prctl(2): programs that this process executes cannot gain privileges.
_PR_SET_NO_NEW_PRIVS = 38


def main(kind: str, max_chars: int) -> dict[str, str] | dict[str, list[str]]:
    """Process the document on standard input. Returns an object that is printed as JSON.

    ``kind``: ``WEB_PAGE``, ``PAGE_IMAGES``, ``PAGE_TEXTS``, or the media type of a document. If it
    is "", the media type is detected from the content. The object depends on ``kind``:

    - For a document: ``{"text": …}`` with at most ``max_chars`` + 1 characters.
    - For a web page: the same, with the additional key ``"title"``.
    - For page images: ``{"pages": […]}``, which are PNGs in base64 with at most ``max_chars``
      characters in total.
    - For page texts: ``{"pages": […]}``, or ``{"error": "bomb"}`` if they are longer.
    - After a failure: ``{"error": …}``.
    """
    content = sys.stdin.buffer.read()
    try:
        if kind == WEB_PAGE:
            return _read_web_page(content, max_chars)
        if kind == PAGE_IMAGES:
            return _render_pages(content, max_chars)
        if kind == PAGE_TEXTS:
            return _read_pages(content, max_chars)
        return _read_document(content, kind, max_chars)
    except (ImportError, PermissionError):
        return {"error": "missing"}


def _read_web_page(content: bytes, max_chars: int) -> dict[str, str]:
    import trafilatura
    from trafilatura.utils import decode_file

    def extract(markup: str) -> str:
        text = trafilatura.extract(
            markup, output_format="markdown", include_links=True, include_tables=True
        )
        return text or ""

    extract(decode_file(b"<p>They import modules on first use.</p>"))
    _import_codecs()
    confine()
    try:
        markup = decode_file(content)
        return {"text": extract(markup)[: max_chars + 1], "title": page_title(markup)}
    except Exception:  # the library raises exceptions of many types
        return {"error": "broken"}


def _import_codecs() -> None:
    """Import the codecs of all encodings that a page may use, if this process runs as root. The
    process later changes to an unprivileged user. This user may not be allowed to read Python's
    folder, so codecs could then not be imported."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    for name in set(aliases.aliases.values()):
        with suppress(ImportError):  # a codec of another operating system
            importlib.import_module(f"encodings.{name}")


def page_title(markup: str) -> str:
    """Return the first ``_MAX_TITLE_CHARS`` characters of the first ``title`` element. The search
    takes linear time for every page, because a hostile page could otherwise make it very slow."""
    start = _TITLE_START.search(markup)
    end = _TITLE_END.search(markup, start.end()) if start is not None else None
    if start is None or end is None:
        return ""
    return markup[start.end() : min(end.start(), start.end() + _MAX_TITLE_CHARS)]


def _read_document(content: bytes, kind: str, max_chars: int) -> dict[str, str]:
    import kreuzberg

    config = kreuzberg.ExtractionConfig(use_cache=False, disable_ocr=True, output_format="markdown")
    if content.startswith(b"%PDF-"):
        _unpack_pdf_library()
    confine()
    try:
        kind = kind or kreuzberg.detect_mime_type_from_bytes(content)
        text = kreuzberg.extract_bytes_sync(content, kind, config).content
    except (kreuzberg.KreuzbergError, ValueError, RuntimeError, MemoryError) as error:
        return {"error": _error_code(str(error).lower())}
    return {"text": text[: max_chars + 1]}


def _read_pages(content: bytes, max_chars: int) -> dict[str, str] | dict[str, list[str]]:
    import kreuzberg

    pages = kreuzberg.PageConfig(extract_pages=True)
    config = kreuzberg.ExtractionConfig(use_cache=False, disable_ocr=True, pages=pages)
    _unpack_pdf_library()
    confine()
    try:
        found = kreuzberg.extract_bytes_sync(content, "application/pdf", config).pages or []
    except (kreuzberg.KreuzbergError, ValueError, RuntimeError, MemoryError) as error:
        return {"error": _error_code(str(error).lower())}
    texts = [str(page["content"]).replace("\r\n", "\n") for page in found]
    return {"error": "bomb"} if sum(map(len, texts)) > max_chars else {"pages": texts}


def _unpack_pdf_library() -> None:
    """Call the PDF library once before ``confine`` is called. At its first use, the library writes
    files to the disk, and ``confine`` forbids this."""
    import kreuzberg

    config = kreuzberg.ExtractionConfig(use_cache=False, disable_ocr=True)
    kreuzberg.extract_bytes_sync(_EMPTY_PDF, "application/pdf", config)


def _render_pages(content: bytes, max_chars: int) -> dict[str, str] | dict[str, list[str]]:
    import kreuzberg

    _unpack_pdf_library()
    os.chdir(tempfile.mkdtemp())
    os.chmod(".", 0o755)  # after confine(), the file is only reachable by its relative path
    with open("document.pdf", "wb") as file:
        file.write(content)
    confine()
    pages: list[str] = []
    try:
        with kreuzberg.PdfPageIterator("document.pdf", dpi=_PAGE_DPI) as images:
            for _, image in images:
                if len(pages) == MAX_PAGES:
                    return {"error": "pages"}
                pages.append(base64.b64encode(image).decode())
                if (max_chars := max_chars - len(pages[-1])) < 0:
                    return {"error": "bomb"}
    except (kreuzberg.KreuzbergError, ValueError, RuntimeError, MemoryError) as error:
        return {"error": _error_code(str(error).lower())}
    return {"pages": pages}


def confine() -> None:
    """Limit the memory and CPU time of this process and drop its privileges. Call this before
    parsing and after all imports, because the libraries may be in a folder that only root can read.
    Raises ``PermissionError`` if this process runs as root but may not change its user."""
    _set_limits()
    _drop_privileges()


def _drop_privileges() -> None:
    """If this process runs as root, change to a user that owns no files. Also prevent the process
    from gaining privileges later. Does nothing outside of Linux. Raises ``OSError`` if this process
    runs as root but may not change its user."""
    if not hasattr(os, "setresuid") or sys.platform != "linux":
        return
    import ctypes  # import now: the new user may not be able to read Python's folder

    libc = ctypes.CDLL(None)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_UID, _UID, _UID)
        os.setresuid(_UID, _UID, _UID)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _set_limits() -> None:
    """Limit the memory, CPU time and open files of this process, and forbid it to write files.
    ``ipc.worker_program.limit_program`` does the same. This file cannot import it, because this
    file may run in a sandbox without the other files of Antiphon."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    for what, limit in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CPU, _CPU_SECONDS),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard_limit = resource.getrlimit(what)
        if hard_limit != resource.RLIM_INFINITY:
            limit = min(limit, hard_limit)
        resource.setrlimit(what, (limit, limit))


def _error_code(message: str) -> str:
    if "password" in message or "encrypt" in message:
        return "encrypted"
    if "limit" in message or "too large" in message:
        return "bomb"
    if "unsupported" in message or "mime" in message:
        return "unsupported"
    return "broken"


if __name__ == "__main__":
    output = os.dup(1)
    os.dup2(2, 1)  # output of a parser must not mix with the result
    result = main(sys.argv[1], int(sys.argv[2]))
    with open(output, "wb") as out:
        out.write(json.dumps(result).encode())
