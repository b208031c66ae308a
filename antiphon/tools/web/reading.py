"""What was fetched, as text with numbered links: HTML by trafilatura, other text as it stands."""

from __future__ import annotations

import re
from urllib.parse import urljoin

from antiphon.errors import SetupError, ToolError

from .index import Document
from .page import domain, plain

__all__ = ["read"]

_LINK = re.compile(r"!?\[([^\[\]]*)\]\(([^()\s]+)\)")
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_HEADING = re.compile(r"^#\s+(.+)$", re.MULTILINE)
_HTML = ("text/html", "application/xhtml+xml")
_NOT_OURS = str.maketrans("【】", "〖〗")


def read(url: str, content: bytes, mime: str) -> Document:
    """The document in ``content``. Blocks while it reads. Raises ``ToolError`` for what is no text,
    ``SetupError`` without what reads HTML."""
    if mime in _HTML or (not mime and b"<html" in content[:2000].lower()):
        return _html(url, content)
    if mime and not mime.startswith("text/") and mime not in ("application/json",):
        raise ToolError(f"{url} is no page but {mime}.")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ToolError(f"{url} is no text.") from None
    found = _HEADING.search(text)
    return _document(url, found.group(1) if found else "", text)


def _html(url: str, content: bytes) -> Document:
    try:
        import trafilatura
    except ImportError:
        raise SetupError('Reading pages needs an extra: pip install "antiphon[web]".') from None
    markup = content.decode("utf-8", "replace")
    text = trafilatura.extract(
        markup, url=url, output_format="markdown", include_links=True, include_tables=True
    )
    title = _TITLE.search(markup)
    if not text:
        raise ToolError(f"{url} says nothing that could be read.")
    return _document(url, _unescaped(title.group(1)) if title else "", text)


def _document(url: str, title: str, text: str) -> Document:
    links: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        said, target = plain(found.group(1)), urljoin(url, found.group(2))
        if not target.startswith(("http://", "https://")):
            return said
        links.append(target)
        return f"【{len(links) - 1}†{said}†{domain(target)}】"

    text = _LINK.sub(numbered, text.translate(_NOT_OURS))
    return Document(url=url, title=plain(title), text=text, links=tuple(links))


def _unescaped(text: str) -> str:
    from html import unescape

    return unescape(text)
