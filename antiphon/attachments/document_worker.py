"""Reads one document, in a process of its own: its text comes out as a line of JSON.

Run by its path: whatever a hostile file does to the parser, it does here, within bounds of memory
and time, without files to write and without the server's secrets.
"""

from __future__ import annotations

import json
import os
import sys

__all__ = ["main"]

#: A page with nothing on it.
_EMPTY = (
    b"%PDF-1.1\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj"
    b" 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj"
    b" 3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj trailer<</Root 1 0 R>>"
)
_MEMORY, _SECONDS, _FILES = 2 * 2**30, 60, 64


def main(kind: str, most: int) -> dict[str, str]:
    """``{"text": …}``, cut after ``most`` characters, or ``{"error": …}``."""
    content = sys.stdin.buffer.read()
    try:
        import kreuzberg
    except ImportError:
        return {"error": "missing"}
    config = kreuzberg.ExtractionConfig(use_cache=False, disable_ocr=True, output_format="markdown")
    if content.startswith(b"%PDF-"):  # its part for these unpacks itself when it is first used
        kreuzberg.extract_bytes_sync(_EMPTY, "application/pdf", config)
    _bound()
    try:
        kind = kind or kreuzberg.detect_mime_type_from_bytes(content)
        text = kreuzberg.extract_bytes_sync(content, kind, config).content
    except (kreuzberg.KreuzbergError, ValueError, RuntimeError, MemoryError) as error:
        return {"error": _why(str(error).lower())}
    return {"text": text[: most + 1]}


def _bound() -> None:
    try:
        import resource
    except ImportError:  # not a Unix
        return
    for what, limit in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CPU, _SECONDS),
        (resource.RLIMIT_NOFILE, _FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (limit, limit))


def _why(message: str) -> str:
    if "password" in message or "encrypt" in message:
        return "encrypted"
    if "limit" in message or "too large" in message:
        return "bomb"
    if "unsupported" in message or "mime" in message:
        return "unsupported"
    return "broken"


if __name__ == "__main__":
    told = os.dup(1)
    os.dup2(2, 1)  # whatever a parser prints is no part of the answer
    result = main(sys.argv[1], int(sys.argv[2]))
    with open(told, "wb") as out:
        out.write(json.dumps(result).encode())
