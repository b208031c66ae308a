"""Download the content of URLs from the public internet, with limits on size and time.

For each connection, also after a redirect, the server's IP address must be public. The address is
checked when the socket is created. No cookies and no credentials are sent.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import structlog
from msgspec import Struct

from antiphon.security.ssrf import AddressNotAllowed, Network, guarded_session
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.installation import require_package

_log = structlog.get_logger(__name__)

_ADDRESS_REFUSED = "its address is not a public one (see the setting fetch_allowed_networks)"
Reason = Literal["url", "address", "status", "large", "slow", "broken"]

_TIMEOUT_S = 20.0
_MAX_REDIRECTS = 3
_MAX_CONCURRENT = 8
#: Lifetime in seconds and total size in bytes of the cache. Results are cached because the requests
#: of a conversation contain the same URLs.
_CACHE_S, _CACHE_BYTES = 300.0, 64 * 2**20


class FetchError(Exception):
    """Error for a URL that could not be fetched. ``reason``: the reason as one word. The message
    has the details and may be shown to the client."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class FetchResult(Struct, frozen=True):
    """A fetched resource. ``mime``: the media type that the server declares. ``name``: the last
    segment of the URL's path. ``url``: the URL after redirects."""

    content: bytes
    mime: str
    name: str
    url: str = ""


class Fetcher:
    """Fetches URLs and caches the results. Create one instance per server, with ``open``.

    ``open_session`` opens the HTTP session. It is called at the first fetch, because importing
    aiohttp takes 0.2 s. ``max_bytes``: maximum size of one resource. ``clock`` returns seconds. It
    decides when a cached result expires.
    """

    def __init__(
        self, open_session: Callable[[], Any], max_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._open_session = open_session
        self._session: Any = None
        self._max_bytes = max_bytes
        self._clock = clock
        self._slots = FairLimiter(_MAX_CONCURRENT)
        self._cache: OrderedDict[str, tuple[float, FetchResult]] = OrderedDict()
        self._cached_bytes = 0

    @classmethod
    def open(
        cls,
        *,
        max_bytes: int,
        clock: Callable[[], float],
        networks: Sequence[Network] = (),
        timeout_s: float = _TIMEOUT_S,
        resolver: object = None,
    ) -> Fetcher:
        """Create a fetcher.

        ``max_bytes``: maximum size of one resource. ``networks``: private networks that the fetcher
        may access. ``clock`` returns seconds; it decides when a cached result expires. ``resolver``
        resolves host names; the default is aiohttp's resolver. Raises ``SetupError`` if the extra
        ``fetch`` is not installed.
        """
        require_package("aiohttp", "The HTTP client that fetches URLs", "fetch")
        open_session = partial(
            guarded_session,
            timeout_s=timeout_s,
            headers={"user-agent": "antiphon-fetch", "accept-encoding": "identity"},
            networks=networks,
            resolver=resolver,
            auto_decompress=False,
        )
        return cls(open_session, max_bytes, clock)

    async def fetch(self, url: str, *, tenant: str = "") -> FetchResult:
        """Fetch an http or https URL for a tenant. If fetches have to wait, tenants take turns.
        Raises ``FetchError``."""
        check(url)
        cached = self._cache.get(url)
        if cached is not None and cached[0] > self._clock():
            return cached[1]
        async with self._slots.slot(tenant):
            fetched = await self._fetch(url)
        self._add_to_cache(url, fetched)
        return fetched

    async def _fetch(self, url: str) -> FetchResult:
        if self._session is None:
            await asyncio.to_thread(import_module, "aiohttp")
        self._session = session = self._session or self._open_session()
        import aiohttp

        try:
            async with session.get(url, max_redirects=_MAX_REDIRECTS) as response:
                if response.status != 200:
                    raise FetchError("status", f"the server answered {response.status}")
                if response.headers.get("content-encoding", "identity").lower() != "identity":
                    raise FetchError("broken", "the server compressed it, which was not accepted")
                content = await self._read(response)
                name = unquote(urlsplit(str(response.url)).path.rpartition("/")[2])
                return FetchResult(content, response.content_type, name, str(response.url))
        except TimeoutError:
            raise FetchError("slow", "it took too long") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error.__cause__, AddressNotAllowed) or isinstance(
                error, AddressNotAllowed
            ):
                _log.warning("fetch refused: address is not public", host=urlsplit(url).hostname)
                raise FetchError("address", _ADDRESS_REFUSED) from None
            raise FetchError("broken", "the connection to the server failed") from None

    async def _read(self, response: Any) -> bytes:
        if (response.content_length or 0) > self._max_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        async for chunk in response.content.iter_chunked(2**16):
            size += len(chunk)
            if size > self._max_bytes:
                raise self._too_large()
            chunks.append(chunk)
        return b"".join(chunks)

    def _too_large(self) -> FetchError:
        return FetchError("large", f"it is larger than {self._max_bytes} bytes")

    def _add_to_cache(self, url: str, fetched: FetchResult) -> None:
        old = self._cache.pop(url, None)
        self._cached_bytes += len(fetched.content) - (len(old[1].content) if old is not None else 0)
        self._cache[url] = (self._clock() + _CACHE_S, fetched)
        while self._cached_bytes > _CACHE_BYTES:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1][1].content)

    async def close(self) -> None:
        """Close the HTTP session."""
        if self._session is not None:
            await self._session.close()


def check(url: str) -> None:
    """Raise ``FetchError`` for an invalid URL, a URL that is not http or https, and a URL with a
    user or password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise FetchError("url", "it is not a valid URL") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise FetchError("url", "it is not an http or https URL")
    if parts.username is not None or parts.password is not None:
        raise FetchError("url", "it must not contain a user or password")
