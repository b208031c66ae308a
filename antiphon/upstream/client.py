"""HTTP client of one upstream.

A failed request is retried if no payload of its response has arrived yet. If the request fails
after the first payload, the client does not retry it. The caller may then send the request again.
If the caller passes the same ``RetryPolicy`` again, this policy counts the retries of the client
and the retries of the caller together.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
import structlog

from antiphon.errors import BackendError, SetupError
from antiphon.inference.sampling import Session
from antiphon.support.push import Sink, send
from antiphon.support.tasks import BackgroundTasks

from .errors import UpstreamDown, error_from_response
from .http import HttpClient, HttpResponse
from .replicas import DNS_PREFIX, Replica, ReplicaPool, split_addresses
from .retries import RetryPolicy, UpstreamHealth
from .routers import OpenSessions, Router, SessionTokens
from .sse import MAX_RESPONSE_BYTES, SseParser

_log = structlog.get_logger(__name__)

#: Seconds to wait for the end of the body after ``[DONE]``. Only a connection whose body was read
#: to its end can be used again.
_DRAIN_S = 0.25
#: Seconds after which a host name of several replicas is resolved again.
_RESOLVE_S = 10.0
#: Time limit in seconds for a probe, which is a request that checks whether a replica is up.
_PROBE_S = 5.0
#: Maximum number of bytes that are read from an error response, and time limit for reading them in
#: seconds.
_ERROR_BYTES, _ERROR_S = 64 * 1024, 5.0
_HEADERS: Mapping[str, str] = {
    "content-type": "application/json",
    "accept": "*/*",
    "accept-encoding": "identity",
    "user-agent": "antiphon",
}


#: Returns the IP addresses of a host.
Resolver = Callable[[str], Awaitable[list[str]]]


async def resolve_host(host: str) -> list[str]:
    """Return the IP addresses of a host. If the host has IPv4 addresses, only these are returned.
    Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    for family in (socket.AF_INET, socket.AF_INET6):
        if addresses := [str(each[4][0]) for each in found if each[0] == family]:
            return addresses
    return []


class Upstream:
    """HTTP client of one upstream. The upstream is the server at ``url``, or several servers
    (replicas) that serve the same model.

    - ``url``: one address, several addresses separated by commas, or ``dns+http://…`` with a host
      name that resolves to several servers.
    - ``key``: the API key.
    - ``connect_s``: time limit for opening a connection, in seconds.
    - ``silence_s``: maximum time in seconds without data, including the time in which the engine
      processes the prompt.
    - ``router``: the kind of router at this address; None if there is no router.
    - ``pause`` is called to sleep, and ``resolve`` to resolve a host name. Tests replace these
      functions.

    Raises ``SetupError`` for an invalid address or header.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connect_s: float = 10,
        silence_s: float = 600,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        router: Router | None = None,
        resolve: Resolver = resolve_host,
    ) -> None:
        addresses = split_addresses(url)
        self.url = addresses[0].removeprefix(DNS_PREFIX)
        #: The address without a final ``/v1``. Callers build URLs of routes outside OpenAI's API
        #: from it. If there are several replicas, the address of the replica that gets the request
        #: takes its place.
        self.root = self.url.removesuffix("/v1")
        self._resolve = resolve if addresses[0].startswith(DNS_PREFIX) else None
        self._resolved_at: float | None = None
        roots = (each.removeprefix(DNS_PREFIX).removesuffix("/v1") for each in addresses)
        self._pool = ReplicaPool(roots, time.monotonic)
        self._probes = BackgroundTasks("probe of an upstream")
        self._router = router
        self._session_tokens = SessionTokens()
        self._open_sessions = OpenSessions()
        self._key = key
        headers = {**_HEADERS, **(headers or {})}
        if key:
            headers["authorization"] = f"Bearer {key}"
        try:
            self._client = HttpClient(headers, connect_s=connect_s, silence_s=silence_s)
        except ValueError as error:
            raise SetupError(f"the upstream {url!r} cannot be used: {error}") from None
        self._pause = pause
        self._health = UpstreamHealth()
        self._closed = False

    @property
    def versioned_url(self) -> str:
        """The base URL of the routes of OpenAI's API. If the configured address has no path, it is
        the address with ``/v1`` added."""
        path = self.url.partition("://")[2].partition("/")[2]
        return self.url if path else f"{self.url}/v1"

    async def close(self) -> None:
        """Close all connections. Later requests fail."""
        self._closed = True
        await self._probes.close()
        await self._client.close()

    async def request_json(self, url: str, body: object = None, *, wait_s: float = 30) -> Any:
        """Send a short request and return the JSON response. The HTTP method is POST if ``body`` is
        given, and GET otherwise. ``wait_s``: time limit in seconds.

        If a replica cannot be reached, the request is sent to another replica. Other failures are
        not retried. Raises ``BackendError``.
        """
        encoded = b"" if body is None else msgspec.json.encode(body)
        tried: list[Replica] = []
        while True:
            self._check_open()
            await self._refresh()
            replica = self._pool.choose(None, tried)
            try:
                return await self._request_json(replica, url, encoded, wait_s)
            except UpstreamDown as error:
                self._pool.report_failure(replica, error)
                tried.append(replica)
                if len(tried) >= len(self._pool):
                    raise

    async def _request_json(self, replica: Replica, url: str, body: bytes, wait_s: float) -> Any:
        method, url = "POST" if body else "GET", self._replica_url(replica, url)
        try:
            async with asyncio.timeout(wait_s):
                answer = await self._client.request(method, url, body, host=replica.host)
                with closing(answer):
                    content = await _read_all(answer)
            if answer.status != 200:
                raise self._redact_key(error_from_response(answer.status, content))
            return msgspec.json.decode(content)
        except OSError as error:
            raise _connect_error(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BackendError("The upstream's response is not JSON.") from None

    def retry_policy(self, session: Session | None = None) -> RetryPolicy:
        """Return a new retry policy for one request. ``session`` identifies the conversation of the
        request."""
        return RetryPolicy(
            self._pool,
            self._pause,
            self._health,
            session=session,
            is_routed=self._router is not None,
        )

    async def stream(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> AsyncGenerator[list[bytes], None]:
        """Send a request and yield the payloads of the streamed response, for callers that are
        iterators themselves. See ``pump``. If the stream ended with ``[DONE]``, the last list is
        empty. Closing the iterator ends the request."""
        with await self._start(url, body, headers, retry_policy) as started:
            payloads = started.payloads
            while payloads:
                yield payloads
                payloads = await _next_payloads(started.answer, started.reader)
            await _drain(started.answer)
        if started.reader.done:
            yield []

    async def pump(
        self,
        url: str,
        body: bytes,
        sink: Sink[list[bytes]],
        headers: Mapping[str, str] | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> bool:
        """Send a request and give the payloads of the streamed response to ``sink`` (see
        ``support.push``). Each list contains the payloads that arrived together.

        Returns whether the stream ended with ``[DONE]``, which shows that it is complete. Raises
        ``BackendError``. If the caller passes ``retry_policy`` and the stream breaks after the
        first list, the caller must report the error to the policy.
        """
        with await self._start(url, body, headers, retry_policy) as started:
            answer, reader = started.answer, started.reader
            if started.payloads and (rest := sink(started.payloads)) is not None:
                await rest
            if not reader.done:
                with suppress(_Done):
                    await answer.pump(partial(_feed, reader, sink))
            if not reader.done and (payloads := reader.finish()):
                await send(sink, payloads)
            await _drain(answer)
        return reader.done

    async def _start(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str] | None,
        retry_policy: RetryPolicy | None,
    ) -> _StartedStream:
        """Send a request, with retries, and wait for the first payloads of the response. Raises
        ``BackendError`` if the retry policy allows no further attempt."""
        policy = retry_policy or self.retry_policy()
        while True:
            self._check_open()
            await self._refresh()
            session, is_retry = policy.session, policy.is_retry
            replica = policy.next_replica()
            replica.running += 1
            try:
                sent_headers = {**(headers or {}), **self._session_headers(session, is_retry)}
                sent_body = self._with_session(body, session)
                answer, reader, payloads = await self._attempt(
                    replica, url, sent_body, sent_headers
                )
                self._remember_token(session, answer)
                policy.accept()
                # A policy of the caller gets the error from the caller.
                report = policy.report if retry_policy is None else None
                return _StartedStream(answer, reader, payloads, replica, report)
            except BackendError as error:
                replica.running -= 1
                await policy.wait_before_retry(error)
            except BaseException:
                replica.running -= 1
                raise

    async def _attempt(
        self, replica: Replica, url: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[HttpResponse, _Reader, list[bytes]]:
        url = self._replica_url(replica, url)
        try:
            answer = await self._client.request("POST", url, body, headers, host=replica.host)
        except OSError as error:
            raise _connect_error(error) from None
        try:
            if answer.status != 200:
                await self._raise_error(answer, replica)
            media_type = answer.media_type
            reader = _BytesReader() if media_type.startswith("audio/") else SseParser()
            if media_type == "application/json":  # the server did not stream
                return answer, reader, [await _read_all(answer)]
            payloads = await _next_payloads(answer, reader)
            if not payloads and not reader.done:
                raise UpstreamDown("The upstream's answer broke off.")
            return answer, reader, payloads
        except OSError as error:
            answer.close()
            raise _read_error(error) from None
        except BaseException:
            answer.close()
            raise

    # --- replicas and sessions -------------------------------------------------------------------

    def _replica_url(self, replica: Replica, url: str) -> str:
        return replica.root + url.removeprefix(self.root)

    async def _refresh(self) -> None:
        """Resolve the host name of the replicas again if the last result is too old. Also start
        probes of the replicas that are down."""
        now = time.monotonic()
        if self._resolve is not None and (
            self._resolved_at is None or now - self._resolved_at >= _RESOLVE_S
        ):
            self._resolved_at = now
            await self._resolve_replicas(self._resolve)
        self._start_probes()

    def _start_probes(self) -> None:
        """Start a task for each replica that is down. The task probes the replica until it answers.
        An upstream with a single replica needs no probes, because requests are still sent to this
        replica."""
        for replica in self._pool.find_unprobed() if len(self._pool) > 1 else ():
            replica.is_probing = True
            self._probes.start(self._probe_until_up(replica))

    async def _resolve_replicas(self, resolve: Resolver) -> None:
        parts = urlsplit(self.root)
        port = f":{parts.port}" if parts.port is not None else ""
        try:
            addresses = await resolve(parts.hostname or "")
        except OSError as error:
            _log.warning("upstream name cannot be resolved", upstream=self.root, error=str(error))
            return
        if addresses:
            hosts = (f"[{each}]" if ":" in each else each for each in sorted(addresses))
            roots = [f"{parts.scheme}://{host}{port}{parts.path}" for host in hosts]
            self._pool.replace(roots, parts.netloc)

    async def _probe_until_up(self, replica: Replica) -> None:
        """Send probes to a replica that is down, and stop when the replica is up. A probe requests
        the list of models. A response with a status below 500 shows that the replica is up."""
        try:
            while (delay_s := self._pool.probe_delay_s(replica)) is not None:
                await asyncio.sleep(delay_s)
                if await self._answers(replica):
                    _log.info("upstream is up again", upstream=replica.root)
                    self._pool.report_up(replica)
                else:
                    self._pool.report_failed_probe(replica)
        finally:
            replica.is_probing = False

    async def _answers(self, replica: Replica) -> bool:
        url = self._replica_url(replica, f"{self.versioned_url}/models")
        try:
            async with asyncio.timeout(_PROBE_S):
                with closing(await self._client.request("GET", url, host=replica.host)) as answer:
                    return answer.status < 500
        except OSError:
            return False

    def _session_headers(self, session: Session | None, is_retry: bool) -> dict[str, str]:
        """Return the headers from which the router recognizes the conversation.

        A retry gets a new session key, because the engine that failed may be the engine of the
        conversation. With a new key, the router can choose another engine.
        """
        if self._router is None or session is None:
            return {}
        headers = self._router.headers(session, is_retry=is_retry)
        token = None if is_retry else self._session_tokens.get(session.key)
        if self._router.token_header is not None and token is not None:
            headers[self._router.token_header] = token
        return headers

    async def end_session(self, key: str) -> None:
        """Tell the upstream that a session has ended, if its kind takes note of that and if it has
        got requests of the session. A failure is ignored, because this only saves memory there."""
        if self._router is None or self._router.end is None or not self._open_sessions.end(key):
            return
        end = self._router.end(key)
        for replica in self._pool:  # the session was on one of them
            url = self._replica_url(replica, self.root + end.path)
            with suppress(OSError):
                answer = await self._client.request("POST", url, end.body, host=replica.host)
                answer.close()

    def _with_session(self, body: bytes, session: Session | None) -> bytes:
        """Return the request body with additional fields from which the router in front of the
        upstream recognizes the conversation. ``body``: a JSON object as text."""
        if self._router is not None and self._router.end is not None and session is not None:
            self._open_sessions.add(session.key)
        fields = {} if self._router is None or session is None else self._router.fields(session)
        if not fields:
            return body
        rest = body.lstrip()[1:].lstrip()
        comma = b"" if rest.startswith(b"}") else b","
        return msgspec.json.encode(fields)[:-1] + comma + rest

    def _remember_token(self, session: Session | None, answer: HttpResponse) -> None:
        name = None if self._router is None else self._router.token_header
        if name is not None and session is not None and (token := answer.headers.get(name)):
            self._session_tokens.put(session.key, token)

    async def _raise_error(self, answer: HttpResponse, replica: Replica) -> None:
        body = bytearray()
        with suppress(OSError):  # the bytes received so far are enough
            async with asyncio.timeout(_ERROR_S):
                while len(body) < _ERROR_BYTES and (received := await answer.read()):
                    body += received
        error = self._redact_key(error_from_response(answer.status, bytes(body)))
        if not error.permanent:
            error.retry_after_s = _retry_after_s(answer.headers.get("retry-after"))
            raise error
        _log.warning(
            "upstream refused", upstream=replica.root, status=answer.status, error=str(error)
        )
        raise error

    def _redact_key(self, error: BackendError) -> BackendError:
        """Remove the API key from an error message, because some upstreams repeat the key in their
        errors."""
        if self._key:
            error.message = error.message.replace(self._key, "…")
            error.args = (error.message,)
        return error

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("The upstream's connections are closed.", permanent=True)


class _BytesReader:
    """Parser of a response that is no text, such as audio: its payloads are the bytes as they
    arrive."""

    done = False

    def feed(self, received: bytes) -> list[bytes]:
        return [received]

    def finish(self) -> list[bytes]:
        return []


_Reader: TypeAlias = SseParser | _BytesReader


class _StartedStream:
    """A response whose first payloads have arrived. As a context manager, it closes the response at
    the end of the block. If the response has broken off in the block, it raises a ``BackendError``.

    ``reader``: the parser of the response. ``payloads``: the first payloads. ``replica``: the
    replica that sends the response. ``report`` is called with the error of a response that breaks
    off; None if the caller reports it.
    """

    __slots__ = ("_replica", "_report", "answer", "payloads", "reader")

    def __init__(
        self,
        answer: HttpResponse,
        reader: _Reader,
        payloads: list[bytes],
        replica: Replica,
        report: Callable[[BackendError], None] | None,
    ) -> None:
        self.answer, self.reader, self.payloads = answer, reader, payloads
        self._replica, self._report = replica, report

    def __enter__(self) -> _StartedStream:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.answer.close()
        self._replica.running -= 1
        if isinstance(error, OSError) and error is self.answer.error:
            broken = _read_error(error)
            if self._report is not None:
                self._report(broken)
            raise broken from None


class _Done(Exception):
    """Raised at ``[DONE]`` by the sink of a response, because it needs nothing that follows."""


def _feed(reader: _Reader, sink: Sink[list[bytes]], received: bytes) -> Awaitable[None] | None:
    """Parse received bytes, and give the payloads that they complete to ``sink``. Raises ``_Done``
    at ``[DONE]``, at once or when the returned awaitable is awaited."""
    payloads = reader.feed(received)
    rest = sink(payloads) if payloads else None
    if not reader.done:
        return rest
    if rest is None:
        raise _Done
    return _finish(rest)


async def _finish(rest: Awaitable[None]) -> None:
    await rest
    raise _Done


async def _next_payloads(answer: HttpResponse, reader: _Reader) -> list[bytes]:
    """Wait for the next complete payloads and return them. Returns an empty list at the end of the
    stream."""
    while not reader.done:
        received = await answer.read()
        if not received:
            return reader.finish()
        if payloads := reader.feed(received):
            return payloads
    return []


async def _read_all(answer: HttpResponse) -> bytes:
    """Return the whole body of a response that is not streamed. Raises ``BackendError`` for a body
    above ``MAX_RESPONSE_BYTES``."""
    content = bytearray()
    while received := await answer.read():
        content += received
        if len(content) > MAX_RESPONSE_BYTES:
            raise BackendError("The upstream's answer is too long.", permanent=True)
    return bytes(content)


async def _drain(answer: HttpResponse) -> None:
    """Read the body after ``[DONE]`` to its end, so that the connection can be used again. Usually
    no data follows ``[DONE]``."""
    if not answer.is_read:
        with suppress(OSError):  # the response is already complete
            async with asyncio.timeout(_DRAIN_S):
                while await answer.read():
                    pass


def _retry_after_s(value: str | None) -> float | None:
    """Return the seconds of a ``Retry-After`` header. Returns None if the header is missing or
    contains a date."""
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None


def _connect_error(error: OSError) -> BackendError:
    return UpstreamDown(f"The upstream cannot be reached: {_reason(error)}.")


def _read_error(error: OSError) -> BackendError:
    return UpstreamDown(f"The upstream's answer broke off: {_reason(error)}.")


def _reason(error: OSError) -> str:
    """Return the reason of a connection error in words. The text contains no addresses, because it
    is sent to clients."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, ConnectionRefusedError):
        return "it does not listen"
    return "the connection failed"
