"""Program that processes one document in a process of its own and prints the result as JSON. It
extracts the text of a document or web page, or renders the pages of a PDF.

The program is started by its path. It has limits on memory and time, cannot write files, does not
get the server's secrets, and never runs as root. So a hostile file can only harm this process.
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

__all__ = ["MAX_PAGES", "PAGE_IMAGES", "WEB_PAGE", "confine", "main", "page_title"]

#: The kind of a web page, of which the main text is extracted, with links. Other kinds are media
#: types of documents, which are extracted whole.
WEB_PAGE = "web page"
#: The kind of a PDF whose pages are rendered as images, instead of extracting its text.
PAGE_IMAGES = "page images"

#: Most pages that are rendered.
MAX_PAGES = 50
#: A page of A4 has 910 x 1287 pixels: text of 8 points can be read, and more is only scaled down
#: by the image encoders of models.
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
#: The user id that parses if the server is root. Nothing else uses this id, so it owns no files.
_UID = 64002
#: prctl(2): execve() gives no privileges.
_PR_SET_NO_NEW_PRIVS = 38


def main(kind: str, max_chars: int) -> dict[str, str] | dict[str, list[str]]:
    """Return the result as JSON. For documents it is ``{"text": …}`` with at most ``max_chars`` + 1
    characters; web pages also have ``"title"``. For page images it is ``{"pages": […]}``: PNGs in
    base64, together at most ``max_chars`` characters. On failure it is ``{"error": …}``."""
    content = sys.stdin.buffer.read()
    try:
        if kind == WEB_PAGE:
            return _read_web_page(content, max_chars)
        if kind == PAGE_IMAGES:
            return _render_pages(content, max_chars)
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
    except Exception:  # its parts raise exceptions of many kinds
        return {"error": "broken"}


def _import_codecs() -> None:
    """Import the codecs of all encodings that a page may use. Python's folder may be unreadable for
    the unprivileged user to which the process changes later."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    for name in set(aliases.aliases.values()):
        with suppress(ImportError):  # of another operating system
            importlib.import_module(f"encodings.{name}")


def page_title(markup: str) -> str:
    """Return the beginning of the content of the first ``title`` element. Takes linear time,
    because pages are untrusted."""
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


def _unpack_pdf_library() -> None:
    """Call the PDF library once, because it unpacks itself to disk on its first use."""
    import kreuzberg

    config = kreuzberg.ExtractionConfig(use_cache=False, disable_ocr=True)
    kreuzberg.extract_bytes_sync(_EMPTY_PDF, "application/pdf", config)


def _render_pages(content: bytes, max_chars: int) -> dict[str, str] | dict[str, list[str]]:
    import kreuzberg

    _unpack_pdf_library()
    os.chdir(tempfile.mkdtemp())
    os.chmod(".", 0o755)  # the user that parses reaches the file by its relative path only
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
    """Set the limits of this process and drop its privileges, before it parses. Call this after the
    imports, because the library may be in a folder that only root can read. Raises
    ``PermissionError`` if root may not change its user."""
    _set_limits()
    _drop_privileges()


def _drop_privileges() -> None:
    """If this process runs as root, change to a user that owns no files. In any case, never gain
    privileges again. Raises ``OSError`` if root may not change its user."""
    if not hasattr(os, "setresuid") or sys.platform != "linux":
        return
    import ctypes  # before: the user below may not read Python's folder

    libc = ctypes.CDLL(None)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_UID, _UID, _UID)
        os.setresuid(_UID, _UID, _UID)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _set_limits() -> None:
    """Set the limits that ``ipc.worker_program.limit_program`` sets. This file cannot import that
    function, because it is the only file of the server in a sandbox."""
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
    os.dup2(2, 1)  # what a parser prints must not mix with the result
    result = main(sys.argv[1], int(sys.argv[2]))
    with open(output, "wb") as out:
        out.write(json.dumps(result).encode())
