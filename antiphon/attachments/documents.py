"""Documents as text: PDF, office and web formats through a library, in a process of their own, or
a box.

Plain text needs no library. It knows no requests.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import OrderedDict
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

__all__ = ["WORKER", "Documents", "Reader", "Unreadable", "plain_text"]

Why = Literal["unsupported", "missing", "encrypted", "bomb", "broken", "slow", "long"]

#: The program that reads one document.
WORKER = Path(__file__).with_name("document_worker.py")
#: Characters of a text; OpenAI's limit of one that is sent as text.
_MOST_TEXT = 10_485_760
_SECONDS = 30.0
_AT_ONCE = 2
#: Characters of texts kept for the next turn, which most often asks for the same.
_ROOM = 16 * 2**20

#: How what a library must read begins. The rest is text or unknown.
_MAGIC = (b"%PDF-", b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"{\\rtf")
#: Ends of names → types that contents do not tell, and types that are read by the library though
#: they are text.
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


class Unreadable(Exception):
    """A document without a text. ``why``: one word."""

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why: Why = why


class _Said(Struct):
    """What the worker says."""

    text: str | None = None
    error: Literal["missing", "encrypted", "bomb", "unsupported", "broken"] | None = None


def plain_text(content: bytes) -> str | None:
    """``content`` if it is text (UTF-8, or UTF-16 that says so), else None."""
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


class Reader(Protocol):
    """Where the worker runs."""

    async def read(self, content: bytes, kind: str, *, most: int, seconds: float) -> bytes:
        """What it says of a document. Raises ``Unreadable`` if it was ended."""


class _Process:
    """``Reader`` in a process of its own: bounds of memory and time, nothing to write, a folder
    that is nobody else's, and none of the server's secrets."""

    async def read(self, content: bytes, kind: str, *, most: int, seconds: float) -> bytes:
        with TemporaryDirectory(prefix="antiphon-", ignore_cleanup_errors=True) as folder:
            path = os.pathsep.join(path for path in sys.path if path)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                str(WORKER),
                kind,
                str(most),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={"PYTHONPATH": path, "TMPDIR": folder},
            )
            try:
                async with asyncio.timeout(seconds):
                    said, _ = await process.communicate(content)
            except TimeoutError:
                raise Unreadable("slow") from None
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:  # killed for what it took
            raise Unreadable("bomb")
        return said


class Documents:
    """Reads documents; one a server. At most two at a time. ``reader``: None: a process."""

    def __init__(
        self, reader: Reader | None = None, *, seconds: float = _SECONDS, most: int = _MOST_TEXT
    ) -> None:
        self._reader = reader or _Process()
        self._seconds = seconds
        self._most = most
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._texts: OrderedDict[tuple[str, bytes], str] = OrderedDict()
        self._size = 0

    async def text(self, content: bytes, *, name: str = "", mime: str = "") -> str:
        """The text of a document called ``name`` that is said to be ``mime``; its contents have
        the last word. Raises ``Unreadable``."""
        kind = _kind(content, name, mime)
        if kind is None:
            text = await asyncio.to_thread(plain_text, content)
            if text is None:
                raise Unreadable("unsupported")
            return self._bounded(text)
        key = (kind, (await asyncio.to_thread(sha256, content)).digest())
        known = self._texts.get(key)
        if known is not None:
            self._texts.move_to_end(key)
            return known
        async with self._places:
            text = self._bounded(await self._read(content, kind))
        self._keep(key, text)
        return text

    def _bounded(self, text: str) -> str:
        if len(text) > self._most:
            raise Unreadable("long")
        return text

    def _keep(self, key: tuple[str, bytes], text: str) -> None:
        self._size += len(text) - len(self._texts.pop(key, ""))
        self._texts[key] = text
        while self._size > _ROOM:
            self._size -= len(self._texts.popitem(last=False)[1])

    async def _read(self, content: bytes, kind: str) -> str:
        if find_spec("kreuzberg") is None:
            raise Unreadable("missing")
        said = await self._reader.read(content, kind, most=self._most, seconds=self._seconds)
        try:
            result = msgspec.json.decode(said, type=_Said)
        except msgspec.DecodeError:
            raise Unreadable("broken") from None
        if result.text is None:
            raise Unreadable(result.error or "broken")
        return result.text


def _kind(content: bytes, name: str, mime: str) -> str | None:
    """The type the library is to read it as ("": it finds out); None: it is text or unknown."""
    by_name = _KINDS.get(name.rpartition(".")[2].lower(), "") if "." in name else ""
    if content.startswith(b"%PDF-"):
        return "application/pdf"
    if content.startswith(_MAGIC):
        return by_name if by_name not in _MARKUP else ""
    if by_name in _MARKUP or mime in _MARKUP:
        return "text/html"
    return None
