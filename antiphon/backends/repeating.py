"""A backend wrapper for requests of which the client sees nothing before the end. If an upstream
breaks off in the middle of an answer, the wrapper asks for the answer once more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog

from antiphon.backends.wrapper import BackendWrapper, ReplyWrapper
from antiphon.errors import BackendError
from antiphon.inference.conversation import Conversation, Options
from antiphon.stream.deltas import Delta

from .base import DeltaSink, Reply

_log = structlog.get_logger(__name__)


class RepeatingBackend(BackendWrapper):
    """``Backend`` that repeats the replies of ``inner`` once, if they come from an upstream and
    break off. Do not use it for requests that are streamed, or whose tools run on this server."""

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        reply = await super().prepare(conversation, options)
        if not reply.may_fail_early:  # an engine of this server
            return reply
        return _RepeatingReply(reply, lambda: self._inner.prepare(conversation, options))


class _RepeatingReply(ReplyWrapper):
    """``Reply`` that is held back until it is complete. ``prepare`` prepares it once more. Failures
    before the first delta are retried elsewhere, by ``RetryPolicy``."""

    def __init__(self, reply: Reply, prepare: Callable[[], Awaitable[Reply]]) -> None:
        super().__init__(reply)
        self._prepare = prepare

    async def pump(self, sink: DeltaSink) -> None:
        held: list[tuple[Delta, ...]] = []
        try:
            await self._reply.pump(held.append)
        except BackendError as error:
            if not any(held) or error.permanent or error.code != "server_error":
                await _send_all(sink, held)
                raise
            _log.warning("upstream broke off, asking once more", error=error.message)
        else:
            return await _send_all(sink, held)
        self._reply = await self._prepare()
        await self._reply.pump(sink)


async def _send_all(sink: DeltaSink, batches: Sequence[tuple[Delta, ...]]) -> None:
    for batch in batches:
        if (rest := sink(batch)) is not None:
            await rest
