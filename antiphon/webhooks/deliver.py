"""Deliver the webhooks that are due in the store. A delivery is retried until the receiver accepts
it or answers 410 (Gone), or until the retries are used up.

A webhook may be delivered more than once. Receivers recognize repetitions by the webhook's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import structlog
from msgspec import Struct

from antiphon.errors import NotFound, RunError, SetupError
from antiphon.security.ssrf import AddressNotAllowed, guarded_session, is_ip_address, is_public
from antiphon.store.records import DueWebhook
from antiphon.store.runs import RunStore
from antiphon.support.installation import needs_extra
from antiphon.support.tasks import BackgroundTasks

from .signature import Secret, signed_headers

_log = structlog.get_logger(__name__)

#: Seconds to wait after each failed attempt, ± 10 %. If the attempt after the last wait fails, the
#: webhook is dropped. Similar to the schedule that Standard Webhooks recommends; two days in all.
RETRY_DELAYS_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 14_400.0, 36_000.0, 57_600.0, 57_600.0)
#: Seconds for which an attempt reserves its webhook, so that no other process sends it.
DELIVERY_LEASE_S = 60.0
#: Seconds that a response may take; well within ``DELIVERY_LEASE_S``.
_TIMEOUT_S = 15.0
#: Seconds between polls of the store, and seconds that a stop waits for current deliveries.
_POLL_S, _STOP_S = 1.0, 5.0
_MAX_CONCURRENT = 8
_HTTP_GONE = 410


class WebhookTarget(Struct, frozen=True):
    """Where webhooks are sent. ``secrets`` sign them. ``private``: whether ``url`` may lead to this
    machine or its network."""

    url: str
    secrets: tuple[Secret, ...]
    private: bool = False

    @classmethod
    def parse(cls, url: str, secrets: Sequence[str], *, private: bool = False) -> WebhookTarget:
        """Return the target in the settings. Raises ``SetupError`` for an invalid URL or secret."""
        check_url(url, private=private)
        keys = tuple(Secret(secret) for secret in secrets)
        if not keys:
            raise SetupError("Webhooks need a secret: set webhook.secrets.")
        return cls(url, keys, private)


#: Returns where to send a webhook. Returns None if this process cannot send it, and raises
#: ``NotFound`` if its receiver was deleted.
FindTarget = Callable[[DueWebhook], Awaitable[WebhookTarget | None]]


class WebhookSender:
    """Sends webhooks. Create it with ``open``, inside an event loop. ``sessions``: whether a target
    may be private → the HTTP session for such targets."""

    def __init__(self, sessions: Mapping[bool, Any]) -> None:
        self._sessions = sessions

    @classmethod
    def open(cls, *, timeout_s: float = _TIMEOUT_S, resolver: Any = None) -> WebhookSender:
        """Create a sender. ``resolver``: resolves host names; by default aiohttp's resolver. Raises
        ``SetupError`` if aiohttp is not installed."""
        try:
            sessions = {
                private: guarded_session(
                    timeout_s=timeout_s,
                    headers={"user-agent": "antiphon-webhooks"},
                    private=private,
                    resolver=resolver,
                )
                for private in (False, True)
            }
        except ImportError:
            raise SetupError(
                needs_extra("The HTTP client of webhooks is not installed", "webhooks")
            ) from None
        return cls(sessions)

    async def send(self, target: WebhookTarget, id: str, body: bytes, at: int) -> int:
        """Send one webhook. ``at``: the current Unix time in seconds, for the signature. Return the
        HTTP status of the receiver's response. Return 0 if there is no response, or if the URL
        leads to a forbidden private address."""
        import aiohttp

        headers = signed_headers(target.secrets, id, at, body)
        try:
            async with self._sessions[target.private].post(
                target.url, data=body, headers=headers, allow_redirects=False
            ) as response:
                return int(response.status)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error.__cause__, AddressNotAllowed):
                _log.warning("webhook not sent", webhook=id, error=str(error.__cause__))
            else:
                _log.info("webhook delivery failed", webhook=id, error=type(error).__name__)
        return 0

    async def close(self) -> None:
        """Close the HTTP sessions."""
        for session in self._sessions.values():
            await session.close()


class WebhookDeliveries:
    """Delivers due webhooks while its async context is open. It delivers the webhooks of all
    processes that use the store.

    ``find_target``: see ``FindTarget``. ``clock``: returns Unix seconds. ``random``: returns a
    random number from 0 to 1. With it, each retry delay is varied by up to 10 %. ``poll_s``:
    seconds between polls of the store.
    """

    def __init__(
        self,
        store: RunStore,
        sender: WebhookSender,
        find_target: FindTarget,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        poll_s: float = _POLL_S,
    ) -> None:
        self._store = store
        self._sender = sender
        self._find_target = find_target
        self._clock = clock
        self._random = random
        self._poll_s = poll_s
        self._stopping = asyncio.Event()
        self._tasks = BackgroundTasks("webhooks")

    async def __aenter__(self) -> WebhookDeliveries:
        self._tasks.start(self._deliver_until_stopped())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Deliver due webhooks for a few more seconds, because runs may end during shutdown.

        After these seconds, deliveries that are still running are cancelled. The webhook of a
        cancelled delivery becomes due again when the lease of the delivery ends.
        """
        self._stopping.set()
        await self._tasks.close(_STOP_S)

    async def _deliver_until_stopped(self) -> None:
        while True:
            last = self._stopping.is_set()
            if await self._deliver_due():
                continue
            if last:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._stopping.wait()

    async def _deliver_due(self) -> bool:
        """Deliver up to ``_MAX_CONCURRENT`` due webhooks concurrently. Return whether more webhooks
        may be due."""
        try:
            now = self._clock()
            due = await self._store.take_due_webhooks(
                now, now + DELIVERY_LEASE_S, limit=_MAX_CONCURRENT
            )
            async with asyncio.TaskGroup() as group:
                for each in due:
                    group.create_task(self._deliver(each))
            return len(due) == _MAX_CONCURRENT
        except RunError as error:
            _log.warning("due webhooks could not be loaded", error=error.message)
        except Exception:
            _log.exception("due webhooks could not be loaded")
        return False

    async def _deliver(self, due: DueWebhook) -> None:
        """Deliver one webhook. If an error occurs, it is logged, and the webhook becomes due again
        later. Other deliveries continue."""
        try:
            await self._conclude(due, await self._send(due))
        except RunError as error:
            _log.warning("webhook result not stored", webhook=due.id, error=error.message)
        except Exception:
            _log.exception("webhook delivery failed", webhook=due.id)

    async def _send(self, due: DueWebhook) -> int:
        """Send a webhook, and return the HTTP status of the receiver's response. Return 410 (Gone)
        if the receiver was deleted, and 0 if there is no response."""
        try:
            target = await self._find_target(due)
        except NotFound:
            return _HTTP_GONE
        if target is None:
            return 0
        return await self._sender.send(target, due.id, due.body, int(self._clock()))

    async def _conclude(self, due: DueWebhook, status: int) -> None:
        if 200 <= status < 300 or status == _HTTP_GONE:
            await self._store.settle_webhook(due.id, None)
        elif due.attempts > len(RETRY_DELAYS_S):
            _log.error("webhook dropped", webhook=due.id, attempts=due.attempts)
            await self._store.settle_webhook(due.id, None)
        else:
            wait = RETRY_DELAYS_S[due.attempts - 1] * (0.9 + 0.2 * self._random())
            _log.info("webhook will be retried", webhook=due.id, status=status, wait_s=int(wait))
            await self._store.settle_webhook(due.id, self._clock() + wait)


def check_url(url: str, *, private: bool) -> None:
    """Raise ``SetupError`` if it is not safe to send webhooks to ``url``. See ``url_fault``."""
    if (fault := url_fault(url, private=private)) is not None:
        raise SetupError(f"webhook.url must {fault}.")


def url_fault(url: str, *, private: bool) -> str | None:
    """Return what ``url`` must be so that it is safe to send webhooks to it, such as ``name a
    host``. Return None for a URL that is safe.

    ``private``: whether ``url`` may use ``http``, and may contain an address of this machine or its
    network. Only the URL is checked here. The addresses of a host name are checked later, when the
    connection is opened.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return f"be a URL: {error}"
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        return f"begin with https://, not {parts.scheme or 'nothing'}"
    if not host or port == 0 or parts.username is not None or parts.password is not None:
        return "name a host, and no user or password"
    if not private and is_ip_address(host) and not is_public(host):
        return f"not be a private address: {host}"
    return None
