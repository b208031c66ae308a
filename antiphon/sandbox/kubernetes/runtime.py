"""Client of the runtime, a server in each pod. The runtime runs commands and transfers files over
HTTP.

The runtime is ``python-runtime-sandbox`` of agent-sandbox, or has the same endpoints: ``execute``,
``upload`` and ``download``. Paths are relative to the folder ``SANDBOX_BASE_DIR``, which must be
``/mnt``. A router in front of the pods selects the pod by request headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from antiphon.sandbox.agent_calls import FILE_TIMEOUT_S

if TYPE_CHECKING:
    import aiohttp

#: Maximum size of the answer to a command, in bytes. The answers of an agent are shorter.
_MAX_ANSWER_BYTES = 16 << 20


class PodLost(Exception):
    """The runtime (the HTTP server in the pod) does not answer, or its answer is invalid. The pod
    is considered lost."""


class FileRefused(Exception):
    """The runtime (the HTTP server in the pod) could not store a file."""


class _CommandResult(msgspec.Struct, frozen=True):
    stdout: str
    stderr: str
    exit_code: int


class PodRuntime:
    """Client of the runtime (the HTTP server) in one pod. ``headers``: headers of all requests. A
    router in front of the pods, if there is one, selects the pod by these headers."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, headers: dict[str, str] | None = None
    ) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._headers = headers or {}

    async def execute(self, command: str, *, timeout_s: float) -> bytes:
        """Run a command in the pod, without a shell, and return its output. Raises ``PodLost`` if
        the pod is lost or the command fails."""
        raw = await self._send("POST", "execute", timeout_s, body={"command": command})
        try:
            executed = msgspec.json.decode(raw, type=_CommandResult)
        except msgspec.MsgspecError:
            raise PodLost("the runtime's answer is invalid") from None
        if executed.exit_code:
            lines = executed.stderr.strip().splitlines()
            raise PodLost(lines[-1] if lines else f"exit code {executed.exit_code}")
        return executed.stdout.encode("utf-8", "replace")

    async def upload(self, path: str, content: bytes) -> None:
        """Create or replace a file in the pod. Raises ``FileRefused`` if the file cannot be stored,
        and ``PodLost`` if the pod is lost."""
        import aiohttp

        if not path.isprintable():  # the path is sent in a header
            raise FileRefused("its name has control characters")
        form = aiohttp.FormData(quote_fields=False)
        form.add_field("file", content, filename=path, content_type="application/octet-stream")
        await self._send("POST", "upload", FILE_TIMEOUT_S, form=form)

    async def download(self, path: str, max_bytes: int) -> bytes | None:
        """Return at most the first ``max_bytes`` bytes of a file in the pod. Return None if there
        is no such file. Raises ``PodLost``."""
        try:
            return await self._send(
                "GET", f"download/{quote(path, safe='')}", FILE_TIMEOUT_S, max_bytes=max_bytes
            )
        except FileRefused:
            return None

    async def _send(
        self,
        method: str,
        path: str,
        timeout_s: float,
        *,
        body: object = None,
        form: aiohttp.FormData | None = None,
        max_bytes: int | None = None,
    ) -> bytes:
        """Send a request to the runtime, the HTTP server in the pod, and return the body of the
        answer. If ``max_bytes`` is set, a longer body is cut after ``max_bytes`` bytes. Raises
        ``FileRefused`` if the runtime refuses a file operation, and ``PodLost`` if the runtime does
        not answer or its answer is invalid."""
        import aiohttp
        from yarl import URL

        # Without this header, the router stops waiting after 180 seconds.
        headers = {**self._headers, "x-sandbox-timeout": f"{timeout_s:.0f}"}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            async with self._session.request(
                method,
                URL(f"{self._url}/{path}", encoded=True),
                data=form if body is None else msgspec.json.encode(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as response:
                if response.status in (403, 404, 500) and body is None:
                    raise FileRefused(await _message(response))
                if response.status != 200:
                    raise PodLost(f"HTTP status {response.status}")
                content = await _read(response, max_bytes or _MAX_ANSWER_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PodLost(str(error) or type(error).__name__) from None
        if max_bytes is None and len(content) == _MAX_ANSWER_BYTES:
            raise PodLost("the answer is too long")
        return content


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    content = bytearray()
    async for piece in response.content.iter_chunked(1 << 16):
        content += piece[: max_bytes - len(content)]
        if len(content) == max_bytes:
            break
    return bytes(content)


async def _message(response: aiohttp.ClientResponse) -> str:
    try:
        return str((await response.json())["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {response.status}"
