"""Connections to one server, by aiohttp: a request goes out, its answer comes in piece by piece.

No redirects, no cookies, no decompression, nothing is tried twice. Whatever fails is an
``OSError``. It knows nothing of what is asked and answered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakSet

from antiphon.errors import SetupError

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Answer", "Connections"]

#: Seconds after which a connection that nobody needs is ended.
_IDLE_S = 30.0
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Answer:
    """An answer as it comes. ``headers``: their names in any case."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    @property
    def media_type(self) -> str:
        """Of the body, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_read(self) -> bool:
        """All of it has come and was read."""
        return self._response.content.at_eof()

    async def read(self) -> bytes:
        """More of the body: all that has come; nothing at its end. Raises ``OSError`` where it
        breaks off, ``TimeoutError`` where nothing comes for too long."""
        try:
            return await self._response.content.readany()
        except Exception as error:
            raise _failure(error) from None

    def close(self) -> None:
        """Leave. A connection over which more would come is ended."""
        self._response.close()


class Connections:
    """Those of one session. ``headers``: of every request. ``connect_s``: seconds for a
    connection; ``silence_s``: the longest silence of an answer. Raises ``SetupError`` without the
    extra, ``ValueError`` for a header that would be more than one."""

    def __init__(self, headers: Mapping[str, str], *, connect_s: float, silence_s: float) -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError:
            raise SetupError('Upstreams need a package: pip install "antiphon[upstream]"') from None
        if any(_CONTROL.search(f"{name}: {value}") for name, value in headers.items()):
            raise ValueError("a header has a control character in it")
        self._headers = headers
        self._times = (connect_s, silence_s)
        self._session: aiohttp.ClientSession | None = None
        #: Answers that may not have been read to their end.
        self._answers: WeakSet[Answer] = WeakSet()

    async def ask(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The answer to a request, once its head is there. ``headers``: besides its own, or in
        their place. Raises ``OSError``, ``TimeoutError`` where it takes too long."""
        session = self._open()
        try:
            response = await session.request(
                method, url, data=body or None, headers=headers, allow_redirects=False
            )
        except Exception as error:
            raise _failure(error) from None
        answer = Answer(response)
        self._answers.add(answer)
        return answer

    async def close(self) -> None:
        """End all of them; who reads an answer hears of it."""
        for answer in tuple(self._answers):  # aiohttp would leave them waiting
            answer.close()
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        """Made in the loop that uses it."""
        import aiohttp

        if self._session is not None and self._session.closed:
            raise ConnectionError("the connections are closed")
        if self._session is None:
            connect_s, silence_s = self._times
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=connect_s, sock_read=silence_s
                ),
                auto_decompress=False,
            )
        return self._session


def _failure(error: Exception) -> Exception:
    """What it is to those who know no aiohttp."""
    import aiohttp

    if isinstance(error, OSError) or not isinstance(error, aiohttp.ClientError):
        return error
    return ConnectionError(str(error))
