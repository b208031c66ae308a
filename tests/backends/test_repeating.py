"""An answer that nobody has seen yet is asked for again if its upstream breaks off."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from antiphon.backends.base import DeltaSink, Reply
from antiphon.backends.repeating import RepeatingBackend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.backends.wrapper import BackendWrapper, ReplyWrapper
from antiphon.errors import BackendError
from antiphon.inference.conversation import Conversation, Options
from antiphon.stream.deltas import Delta, Finish, Text


class Breaking(BackendWrapper):
    """An upstream whose first replies break off after some batches."""

    def __init__(self, *errors: Exception, batches: int = 2) -> None:
        super().__init__(ScriptedBackend(["one two three"]))
        self.errors = list(errors)
        self.batches = batches
        self.prepared = 0

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        self.prepared += 1
        error = self.errors.pop(0) if self.errors else None
        return BreakingReply(await super().prepare(conversation, options), error, self.batches)


class BreakingReply(ReplyWrapper):
    may_fail_early = True

    def __init__(self, reply: Reply, error: Exception | None, batches: int) -> None:
        super().__init__(reply)
        self._error, self._left = error, batches

    async def pump(self, sink: DeltaSink) -> None:
        def count(batch: tuple[Delta, ...]) -> Awaitable[None] | None:
            if self._error is not None and self._left == 0:
                raise self._error
            self._left -= 1
            return sink(batch)

        await self._reply.pump(count)


async def _play(backend: Breaking) -> list[Any]:
    seen: list[Any] = []
    reply = await RepeatingBackend(backend).prepare(Conversation(()), Options())
    try:
        await reply.pump(seen.extend)
    except BackendError as error:
        seen.append(error)
    return seen


async def test_broken_answer_is_asked_for_once_more() -> None:
    backend = Breaking(BackendError("broke off"))
    seen = await _play(backend)
    assert backend.prepared == 2
    assert "".join(d.text for d in seen if isinstance(d, Text)) == "one two three"
    assert isinstance(seen[-1], Finish)


@pytest.mark.parametrize(
    ("backend", "attempts"),
    [
        (Breaking(BackendError("broke off"), BackendError("broke off")), 2),
        (Breaking(BackendError("no", permanent=True)), 1),
        (Breaking(BackendError("full", code="server_is_overloaded")), 1),
        (Breaking(BackendError("nothing came"), batches=0), 1),
    ],
    ids=["twice", "permanent", "overloaded", "before the answer"],
)
async def test_other_failures_reach_the_client(backend: Breaking, attempts: int) -> None:
    seen = await _play(backend)
    assert backend.prepared == attempts and isinstance(seen[-1], BackendError)


async def test_engine_of_this_server_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BreakingReply, "may_fail_early", False)
    seen = await _play(Breaking(BackendError("broke off")))
    assert any(isinstance(delta, Text) for delta in seen) and isinstance(seen[-1], BackendError)
