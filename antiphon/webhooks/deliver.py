"""Deliveries: what the store says is due is sent, again and again until it is taken.

At least once: a receiver tells repetitions by their id. It knows nothing of responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import structlog

from antiphon.errors import RunError, SetupError
from antiphon.security.ssrf import AddressNotAllowed, socket_factory
from antiphon.store.records import DueWebhook
from antiphon.store.runs import RunStore

from .signature import Secret, signed
from .url import check_url

__all__ = ["SCHEDULE_S", "TRYING_S", "Deliveries", "Sender"]

_log = structlog.get_logger(__name__)

#: Seconds to wait after each failure, give or take a tenth; then it is given up. About the
#: schedule that Standard Webhooks recommends: two days in all.
SCHEDULE_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 14_400.0, 36_000.0, 57_600.0, 57_600.0)
#: A delivery that is being tried is nobody else's for so long.
TRYING_S = 60.0
#: Seconds an answer may take; well within ``TRYING_S``.
_ANSWER_S = 15.0
#: Seconds between looks at the store, and seconds that a stop waits for what is being sent.
_LOOK_S, _STOP_S = 1.0, 5.0
_AT_ONCE = 8
_GONE = 410


class Sender:
    """Sends to one URL. Made by ``open``, inside an event loop."""

    def __init__(self, session: Any, url: str, secrets: Sequence[Secret]) -> None:
        self._session = session
        self._url = url
        self._secrets = secrets

    @classmethod
    def open(
        cls,
        url: str,
        secrets: Sequence[str],
        *,
        private: bool = False,
        answer_s: float = _ANSWER_S,
        resolver: Any = None,
    ) -> Sender:
        """``private``: the URL may be on this machine or its network. ``resolver``: aiohttp's,
        unless one is given. Raises ``SetupError``: a URL or a secret that cannot be, or a missing
        extra."""
        check_url(url, private=private)
        keys = [Secret(secret) for secret in secrets]
        if not keys:
            raise SetupError("Webhooks need a secret: set webhook_secrets.")
        try:
            import aiohttp
        except ImportError:
            raise SetupError('Webhooks need an extra: pip install "antiphon[webhooks]".') from None
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=resolver or aiohttp.ThreadedResolver(),
                socket_factory=socket_factory(private=private),
                use_dns_cache=False,
                force_close=True,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=answer_s),
            headers={"user-agent": "antiphon-webhooks"},
        )
        return cls(session, url, keys)

    async def send(self, id: str, body: bytes, at: int) -> int:
        """The status of the answer, whose body is not read; 0: there was none, or the address is
        refused."""
        import aiohttp

        headers = signed(self._secrets, id, at, body)
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                return int(answer.status)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error.__cause__, AddressNotAllowed):
                _log.warning("a webhook was not sent", webhook=id, error=str(error.__cause__))
            else:
                _log.info("a webhook was not taken", webhook=id, error=type(error).__name__)
        return 0

    async def close(self) -> None:
        """Done."""
        await self._session.close()


class Deliveries:
    """Entered, it delivers what is due, of this process and of others. ``clock`` gives unix
    seconds, ``chance`` a number from 0 to 1. ``look_s``: seconds between looks at the store."""

    def __init__(
        self,
        store: RunStore,
        sender: Sender,
        *,
        clock: Callable[[], float],
        chance: Callable[[], float],
        look_s: float = _LOOK_S,
    ) -> None:
        self._store = store
        self._sender = sender
        self._clock = clock
        self._chance = chance
        self._look_s = look_s
        self._stopping = asyncio.Event()

    async def __aenter__(self) -> Deliveries:
        self._task = asyncio.create_task(self._deliver_on(), name="webhooks")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """What is due now is still tried, for a moment: runs that ended in the stop are told of.
        What is cut short is due again a minute later."""
        self._stopping.set()
        await asyncio.wait((self._task,), timeout=_STOP_S)
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _deliver_on(self) -> None:
        while True:
            last = self._stopping.is_set()
            if await self._deliver_due():
                continue
            if last:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._stopping.wait()

    async def _deliver_due(self) -> bool:
        """Some of it; whether there may be more."""
        try:
            now = self._clock()
            due = await self._store.take_due_webhooks(now, now + TRYING_S, limit=_AT_ONCE)
            async with asyncio.TaskGroup() as group:
                for each in due:
                    group.create_task(self._deliver(each))
            return len(due) == _AT_ONCE
        except RunError as error:
            _log.warning("webhooks could not be looked up", error=error.message)
        except Exception:
            _log.exception("webhooks could not be looked up")
        return False

    async def _deliver(self, due: DueWebhook) -> None:
        """One delivery's trouble is not another's. What comes to no end here is due again."""
        try:
            status = await self._sender.send(due.id, due.body, int(self._clock()))
            await self._conclude(due, status)
        except RunError as error:
            _log.warning("a webhook was not noted", webhook=due.id, error=error.message)
        except Exception:
            _log.exception("a webhook could not be delivered", webhook=due.id)

    async def _conclude(self, due: DueWebhook, status: int) -> None:
        if 200 <= status < 300 or status == _GONE:
            await self._store.delete_webhook(due.id)
        elif due.attempts > len(SCHEDULE_S):
            _log.error("a webhook was given up", webhook=due.id, attempts=due.attempts)
            await self._store.delete_webhook(due.id)
        else:
            wait = SCHEDULE_S[due.attempts - 1] * (0.9 + 0.2 * self._chance())
            _log.info("a webhook is tried again", webhook=due.id, status=status, wait_s=int(wait))
            await self._store.postpone_webhook(due.id, self._clock() + wait)
