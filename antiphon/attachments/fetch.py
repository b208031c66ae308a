"""Fetching what a request names by URL: from the public internet, within bounds of size and time.

Every address is checked where the socket is made, that of each redirect too. It sends no cookies
and no credentials, and does not know what it fetches.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import structlog
from msgspec import Struct

from antiphon.errors import SetupError
from antiphon.security.ssrf import AddressNotAllowed, Network, socket_factory

__all__ = ["Failed", "Fetched", "Fetcher", "check"]

_log = structlog.get_logger(__name__)

Why = Literal["url", "address", "status", "large", "slow", "broken"]

_SECONDS = 20.0
_REDIRECTS = 3
_AT_ONCE = 8
#: For how long, and up to how many bytes in all, what was fetched is at hand: the turns of one
#: conversation ask for the same.
_FRESH_S, _ROOM = 300.0, 64 * 2**20


class Failed(Exception):
    """Nothing was fetched. ``why``: one word; the message says more and may be shown."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message)
        self.why: Why = why


class Fetched(Struct, frozen=True):
    """What stood behind a URL: bytes, the type they are said to be, and the last of its path.
    ``url``: where it was found in the end."""

    content: bytes
    mime: str
    name: str
    url: str = ""


class Fetcher:
    """One a server. Made by ``open``, inside an event loop."""

    def __init__(self, session: Any, most: int, clock: Callable[[], float]) -> None:
        self._session = session
        self._most = most
        self._clock = clock
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._kept: OrderedDict[str, tuple[float, Fetched]] = OrderedDict()
        self._size = 0

    @classmethod
    def open(
        cls,
        *,
        most: int,
        clock: Callable[[], float],
        networks: Sequence[Network] = (),
        seconds: float = _SECONDS,
        resolver: Any = None,
    ) -> Fetcher:
        """``most``: bytes of one thing. ``networks``: private ones that may be fetched from.
        ``clock`` gives seconds, ``resolver`` is aiohttp's unless one is given. Raises
        ``SetupError``: a missing extra."""
        try:
            import aiohttp
        except ImportError:
            raise SetupError(
                'Fetching URLs needs an extra: pip install "antiphon[fetch]".'
            ) from None
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=resolver or aiohttp.ThreadedResolver(),
                socket_factory=socket_factory(networks=networks),
                use_dns_cache=False,
                force_close=True,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=seconds),
            auto_decompress=False,
            headers={"user-agent": "antiphon-fetch", "accept-encoding": "identity"},
        )
        return cls(session, most, clock)

    async def fetch(self, url: str) -> Fetched:
        """What stands behind an http or https URL. Raises ``Failed``."""
        check(url)
        known = self._kept.get(url)
        if known is not None and known[0] > self._clock():
            return known[1]
        async with self._places:
            fetched = await self._fetch(url)
        self._keep(url, fetched)
        return fetched

    async def _fetch(self, url: str) -> Fetched:
        import aiohttp

        try:
            async with self._session.get(url, max_redirects=_REDIRECTS) as answer:
                if answer.status != 200:
                    raise Failed("status", f"the server answered {answer.status}")
                if answer.headers.get("content-encoding", "identity").lower() != "identity":
                    raise Failed("broken", "the server sends it compressed unasked")
                content = await self._read(answer)
                name = unquote(urlsplit(str(answer.url)).path.rpartition("/")[2])
                return Fetched(content, answer.content_type, name, str(answer.url))
        except TimeoutError:
            raise Failed("slow", "it took too long") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error.__cause__, AddressNotAllowed) or isinstance(
                error, AddressNotAllowed
            ):
                _log.warning("an address was not fetched from", host=urlsplit(url).hostname)
                raise Failed("address", "its address is not a public one") from None
            raise Failed("broken", "the server could not be reached or broke off") from None

    async def _read(self, answer: Any) -> bytes:
        if (answer.content_length or 0) > self._most:
            raise self._large()
        pieces: list[bytes] = []
        size = 0
        async for piece in answer.content.iter_chunked(2**16):
            size += len(piece)
            if size > self._most:
                raise self._large()
            pieces.append(piece)
        return b"".join(pieces)

    def _large(self) -> Failed:
        return Failed("large", f"it is larger than {self._most} bytes")

    def _keep(self, url: str, fetched: Fetched) -> None:
        old = self._kept.pop(url, None)
        self._size += len(fetched.content) - (len(old[1].content) if old is not None else 0)
        self._kept[url] = (self._clock() + _FRESH_S, fetched)
        while self._size > _ROOM:
            self._size -= len(self._kept.popitem(last=False)[1][1].content)

    async def close(self) -> None:
        """Done."""
        await self._session.close()


def check(url: str) -> None:
    """Raises ``Failed`` for what is no URL that can be fetched."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Failed("url", "it is not a valid URL") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise Failed("url", "it is not an http or https URL")
    if parts.username is not None or parts.password is not None:
        raise Failed("url", "it must not hold a user or password")
