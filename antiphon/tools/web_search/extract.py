"""Convert fetched content to text with numbered links. HTML and documents are converted by document
readers. Other text stays unchanged."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import unquote, urljoin, urlsplit

from antiphon.attachments.documents import Documents, UnreadableDocument
from antiphon.errors import SetupError, ToolError
from antiphon.support.installation import needs_extra

from .index import PageDocument
from .page import REPLACED_BRACKETS, domain, plain_line

_LINK = re.compile(r"!?\[([^\[\]]*)\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#\s+(.+)$", re.MULTILINE)
_HTML = ("text/html", "application/xhtml+xml")
#: Maximum size of an HTML page in bytes.
_MAX_HTML_BYTES = 8 * 2**20

_UNREADABLE_TEXT = {
    "unsupported": "is in a format that cannot be read as text",
    "encrypted": "is protected by a password",
    "bomb": "needs too many resources to be read",
    "broken": "is damaged",
    "slow": "takes too long to be read",
    "long": "is too long",
}


async def extract_document(
    url: str, content: bytes, mime: str, documents: Documents, *, tenant: str = ""
) -> PageDocument:
    """Convert the content of a URL to a ``PageDocument``, on behalf of ``tenant``.

    Raises ``ToolError`` if the content has no readable text, and ``SetupError`` if the HTML reader
    is not installed.
    """
    if mime in _HTML or (not mime and b"<html" in content[:2000].lower()):
        if len(content) > _MAX_HTML_BYTES:
            raise ToolError(f"{url} is too large to be read.")
        return await _extract_html(url, content, documents, tenant)
    name = unquote(urlsplit(url).path.rpartition("/")[2])
    try:
        text = await documents.text(content, name=name, mime=mime, tenant=tenant)
    except UnreadableDocument as error:
        if error.reason == "missing":
            message = needs_extra(f"{url}: the reader of documents is not installed", "documents")
            raise ToolError(message) from None
        raise _unreadable(url, error) from None
    match = _HEADING.search(text)
    title = match.group(1) if match else name.rpartition(".")[0] or name
    return await asyncio.to_thread(_build_document, url, title, text)


async def _extract_html(
    url: str, content: bytes, documents: Documents, tenant: str
) -> PageDocument:
    try:
        page = await documents.web_page(content, tenant=tenant)
    except UnreadableDocument as error:
        if error.reason == "missing":
            message = needs_extra("The reader of web pages is not installed", "web")
            raise SetupError(message) from None
        raise _unreadable(url, error) from None
    if not page.text:
        raise ToolError(f"{url} has no readable text.")
    return await asyncio.to_thread(_build_document, url, _unescaped(page.title), page.text)


def _unreadable(url: str, error: UnreadableDocument) -> ToolError:
    return ToolError(f"{url} {_UNREADABLE_TEXT[error.reason]}.")


def _build_document(url: str, title: str, text: str) -> PageDocument:
    links: list[str] = []

    def number_link(match: re.Match[str]) -> str:
        label, target = plain_line(match.group(1)), _link_target(url, match.group(2))
        if not target.startswith(("http://", "https://")):
            return label
        links.append(target)
        return f"【{len(links) - 1}†{label}†{domain(target)}】"

    text = _LINK.sub(number_link, text.translate(REPLACED_BRACKETS))
    return PageDocument(url=url, title=plain_line(title), text=text, links=tuple(links))


def _link_target(url: str, link: str) -> str:
    try:
        return urljoin(url, link)
    except ValueError:
        return ""


def _unescaped(text: str) -> str:
    from html import unescape

    return unescape(text)
