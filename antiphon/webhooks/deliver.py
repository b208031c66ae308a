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
from antiphon.store.runs import Due, RunStore

from .address import Guarded, Refused, check_url
from .sign import Secret, signed

__all__ = ["SCHEDULE_S", "Deliveries", "Sender"]

_log = structlog.get_logger(__name__)

#: Seconds to wait after each failure, before some chance is added; then it is given up. About the
#: schedule that Standard Webhooks recommends: two days in all.
SCHEDULE_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 14_400.0, 36_000.0, 57_600.0, 57_600.0)
_TIMEOUT_S = 15.0
#: A delivery that is being tried is nobody else's for so long.
_TRYING_S = 60
_LOOK_S = 1.0
_AT_ONCE = 8
_GONE = 410


class Sender:
    """Sends to one URL. Made by ``open``; ``resolver`` is aiohttp's, unless a test gives one."""

    def __init__(self, session: Any, url: str, secrets: Sequence[Secret], private: bool) -> None:
        self._session = session
        self._url = url
        self._secrets = secrets
        self._private = private

    @classmethod
    def open(
        cls, url: str, secrets: Sequence[str], *, private: bool = False, resolver: Any = None
    ) -> Sender:
        """Raises ``SetupError``: a URL or a secret that cannot be, or a missing extra."""
        try:
            import aiohttp
        except ImportError:
            raise SetupError('Webhooks need an extra: pip install "antiphon[webhooks]".') from None
        check_url(url, private=private)
        if not secrets:
            raise SetupError("Webhooks need a secret: set webhook_secrets.")
        guarded: Any = Guarded(resolver or aiohttp.ThreadedResolver(), private=private)
        connector = aiohttp.TCPConnector(
            resolver=guarded,
            use_dns_cache=False,
            limit=_AT_ONCE,
            force_close=True,
        )
        session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            headers={"user-agent": "antiphon-webhooks"},
        )
        return cls(session, url, [Secret(secret) for secret in secrets], private)

    async def send(self, id: str, body: bytes, at: int) -> int:
        """The status of the answer; 0: there was none, or the address is refused."""
        import aiohttp

        headers = signed(self._secrets, id, at, body)
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                return int(answer.status)
        except Refused as error:
            _log.warning("a webhook was not sent", webhook=id, error=str(error))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            _log.info("a webhook was not taken", webhook=id, error=type(error).__name__)
        return 0

    async def close(self) -> None:
        """Done."""
        await self._session.close()


class Deliveries:
    """Entered, it delivers what is due, of this process and of others. ``clock`` gives unix
    seconds, ``chance`` a number from 0 to 1."""

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

    async def __aenter__(self) -> Deliveries:
        self._task = asyncio.create_task(self._deliver_on(), name="webhooks")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._sender.close()

    async def _deliver_on(self) -> None:
        while True:
            try:
                now = self._clock()
                due = await self._store.due(now, now + _TRYING_S, limit=_AT_ONCE)
                await asyncio.gather(*(self._deliver(each) for each in due))
            except RunError as error:
                _log.warning("webhooks could not be looked up", error=error.message)
                due = ()
            if len(due) < _AT_ONCE:
                await asyncio.sleep(self._look_s)

    async def _deliver(self, due: Due) -> None:
        status = await self._sender.send(due.id, due.body, int(self._clock()))
        if 200 <= status < 300 or status == _GONE:
            await self._store.settle(due.id)
            return
        if due.attempts > len(SCHEDULE_S):
            _log.error("a webhook was given up", webhook=due.id, attempts=due.attempts)
            await self._store.settle(due.id)
            return
        wait = SCHEDULE_S[due.attempts - 1] * (0.9 + 0.2 * self._chance())
        _log.info("a webhook will be tried again", webhook=due.id, status=status, wait_s=int(wait))
        await self._store.postpone(due.id, self._clock() + wait)
