"""A backend without a model: it plays what it was given. For tests, benches and examples."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any

from antiphon.backends.base import Backend, BackendCapabilities, Reply
from antiphon.conversation import Conversation, Options, ResumePoint
from antiphon.errors import CannotContinue, RequestError, RunError
from antiphon.stream.deltas import Close, Delta, Finish, Open, SampledTokens, Text
from antiphon.wire.items import Message
from antiphon.wire.response import Usage

__all__ = ["Script", "ScriptedBackend", "ScriptedReply"]

#: One reply: a text, said word by word; deltas, played as they are; or an error, raised before the
#: run (``RequestError``) or when the reply begins (``RunError``).
Script = str | Sequence[Delta] | RequestError | RunError

#: What becomes known at one time, one after the other.
Steps = Sequence[tuple[Delta, ...]]

#: A script as it is played, and how many words that are.
_Played = tuple[Steps | RunError, int] | RequestError

#: Requests a backend remembers; it may serve for days.
_REMEMBERED = 1000

_WORD = re.compile(r"\s*\S+|\s+\Z")


class ScriptedBackend(Backend):
    """``Backend`` that plays ``scripts``, one a request, beginning again after the last; or what a
    function makes of the request.

    Deltas without a ``Finish`` get one. A "token" is a word. ``wait_s``: pause before every delta.
    ``tokens``: give every delta a token id of its own, its place, from which an interrupted reply
    can be continued.
    """

    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}
    capabilities = BackendCapabilities(images=True)

    def __init__(
        self,
        scripts: Sequence[Script] | Callable[[Conversation, Options], Script] = ("Hello!",),
        *,
        context_size: int | None = None,
        wait_s: float = 0,
        tokens: bool = False,
    ) -> None:
        self.context_size = context_size
        self._tokens = tokens
        #: What is played for each script, made once.
        self._played: dict[int, _Played] = {}
        self._scripts = scripts
        self._wait_s = wait_s
        self._count = 0
        #: What was asked lately, in order.
        self.requests: deque[tuple[Conversation, Options]] = deque(maxlen=_REMEMBERED)
        #: Replies that were closed before their end.
        self.aborted = 0
        self.closed = False

    async def prepare(self, conversation: Conversation, options: Options) -> ScriptedReply:
        self.requests.append((conversation, options))
        played = self._next(conversation, options)
        self._count += 1
        if isinstance(played, RequestError):
            raise played
        steps, words = played
        return ScriptedReply(self, steps, _words(conversation), words, self._wait_s)

    def _next(self, conversation: Conversation, options: Options) -> _Played:
        if callable(self._scripts):
            return self._made(self._scripts(conversation, options))
        at = self._count % len(self._scripts)
        if at not in self._played:
            self._played[at] = self._made(self._scripts[at])
        return self._played[at]

    def _made(self, script: Script) -> _Played:
        if isinstance(script, RequestError):
            return script
        if isinstance(script, RunError):
            return script, 0
        deltas = _said(script) if isinstance(script, str) else script
        words = sum(isinstance(delta, Text) for delta in deltas)
        return _steps(_numbered(deltas) if self._tokens else deltas), words

    async def close(self) -> None:
        self.closed = True


class ScriptedReply(Reply):
    """``Reply`` of a script, step by step."""

    input_tokens = 0

    def __init__(
        self,
        backend: ScriptedBackend,
        steps: Steps | RunError,
        input_tokens: int,
        words: int,
        wait_s: float,
    ) -> None:
        self._backend = backend
        self._steps = steps
        self._words = words
        self._wait_s = wait_s
        self.input_tokens = input_tokens

    def resume(self, point: ResumePoint) -> ScriptedReply:
        steps = () if isinstance(self._steps, RunError) else self._steps
        sampled = len(point.sampled_ids)
        if sampled and not any(
            isinstance(delta, SampledTokens) for step in steps for delta in step
        ):
            raise CannotContinue("it was played without tokens")
        if not sampled:
            return self
        return ScriptedReply(
            self._backend, steps[sampled:], self.input_tokens, self._words, self._wait_s
        )

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        if isinstance(self._steps, RunError):
            raise self._steps
        step: tuple[Delta, ...] = (Close(),)
        try:
            for step in self._steps:  # and no more: what is measured is the server around it
                await asyncio.sleep(self._wait_s)
                yield step
            if not isinstance(step[-1], Finish):
                step = (Finish("stop", _usage(self.input_tokens, self._words)),)
                yield step
        finally:
            self._backend.aborted += not isinstance(step[-1], Finish)


def _steps(deltas: Iterable[Delta]) -> Steps:
    """What becomes known at one time: each delta with the ids sampled behind it."""
    steps: list[tuple[Delta, ...]] = []
    sampled: tuple[Delta, ...] = ()
    for delta in deltas:
        if isinstance(delta, SampledTokens):
            sampled = (delta,)
        else:
            steps.append((*sampled, delta))
            sampled = ()
    return [*steps, sampled] if sampled else steps


def _said(text: str) -> list[Delta]:
    """A message that says ``text`` word by word."""
    words: list[Delta] = [Text(word) for word in _WORD.findall(text)]
    return [Open(Message(role="assistant", content=())), *words, Close()]


def _numbered(deltas: Iterable[Delta]) -> list[Delta]:
    """Each delta as a token of its own."""
    return [
        each for number, delta in enumerate(deltas) for each in (SampledTokens((number,)), delta)
    ]


def _usage(given: int, said: int) -> Usage:
    return Usage(input_tokens=given, output_tokens=said, total_tokens=given + said)


def _words(conversation: Conversation) -> int:
    texts = [conversation.instructions or ""]
    for item in conversation.items:
        if isinstance(item, Message):
            texts += [getattr(part, "text", "") for part in item.content]
    return sum(len(text.split()) for text in texts)
