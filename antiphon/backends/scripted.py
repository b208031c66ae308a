"""A backend without a model: it plays what it was given. For tests, benches and examples."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any

from antiphon.conversation import Begun, Conversation, Options
from antiphon.errors import CannotContinue, RequestError, RunError
from antiphon.stream.deltas import Close, Delta, Finish, Open, Sampled, Text
from antiphon.wire.items import Message
from antiphon.wire.response import Usage

__all__ = ["Script", "Scripted", "ScriptedReply"]

#: One reply: a text, said word by word; deltas, played as they are; or an error, raised before the
#: run (``RequestError``) or when the reply begins (``RunError``).
Script = str | Sequence[Delta] | RequestError | RunError

#: Requests a backend remembers; it may serve for days.
_REMEMBERED = 1000

_WORD = re.compile(r"\s*\S+|\s+\Z")


class Scripted:
    """``Backend`` that plays ``scripts``, one a request, beginning again after the last; or what a
    function makes of the request.

    Deltas without a ``Finish`` get one. A "token" is a word. ``wait_s``: pause before every delta.
    ``tokens``: give every delta a token id of its own, its place, from which an interrupted reply
    can be continued.
    """

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
        self.recommended: Mapping[str, Any] = {}
        self._scripts = scripts
        self._wait_s = wait_s
        self._count = 0
        #: What was asked lately, in order.
        self.requests: deque[tuple[Conversation, Options]] = deque(maxlen=_REMEMBERED)
        #: Replies that were closed before their end.
        self.aborted = 0
        self.closed = False

    sees_images = True

    async def prepare(self, conversation: Conversation, options: Options) -> ScriptedReply:
        self.requests.append((conversation, options))
        script = self._script(conversation, options)
        self._count += 1
        if isinstance(script, RequestError):
            raise script
        deltas = _said(script) if isinstance(script, str) else script
        if self._tokens and not isinstance(deltas, RunError):
            deltas = _numbered(deltas)
        return ScriptedReply(self, deltas, _words(conversation), self._wait_s)

    def _script(self, conversation: Conversation, options: Options) -> Script:
        if callable(self._scripts):
            return self._scripts(conversation, options)
        return self._scripts[self._count % len(self._scripts)]

    async def close(self) -> None:
        self.closed = True


class ScriptedReply:
    """``Reply`` of a script."""

    kept = None
    dropped: tuple[str, ...] = ()

    def __init__(
        self,
        backend: Scripted,
        deltas: Iterable[Delta] | RunError,
        input_tokens: int,
        wait_s: float,
    ) -> None:
        self._backend = backend
        self._deltas = deltas
        self._wait_s = wait_s
        self._said = 0
        self.input_tokens = input_tokens

    def resumed(self, begun: Begun) -> ScriptedReply:
        deltas = () if isinstance(self._deltas, RunError) else tuple(self._deltas)
        sampled = len(begun.sampled)
        if sampled and not any(isinstance(delta, Sampled) for delta in deltas):
            raise CannotContinue("it was played without tokens")
        rest = ScriptedReply(self._backend, deltas[2 * sampled :], self.input_tokens, self._wait_s)
        rest._said = sum(isinstance(delta, Text) for delta in deltas[: 2 * sampled])
        return rest if sampled else self

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        if isinstance(self._deltas, RunError):
            raise self._deltas
        words = self._said
        ended = False
        sampled: tuple[Delta, ...] = ()
        try:
            for delta in self._deltas:
                if isinstance(delta, Sampled):
                    sampled = (delta,)
                    continue
                await asyncio.sleep(self._wait_s)
                words += isinstance(delta, Text)
                ended = isinstance(delta, Finish)
                yield (*sampled, delta) if sampled else (delta,)
                sampled = ()
            if not ended:
                ended = True
                yield (*sampled, Finish("stop", _usage(self.input_tokens, words)))
        finally:
            self._backend.aborted += not ended


def _said(text: str) -> list[Delta]:
    """A message that says ``text`` word by word."""
    words: list[Delta] = [Text(word) for word in _WORD.findall(text)]
    return [Open(Message(role="assistant", content=())), *words, Close()]


def _numbered(deltas: Iterable[Delta]) -> list[Delta]:
    """Each delta as a token of its own."""
    return [each for number, delta in enumerate(deltas) for each in (Sampled((number,)), delta)]


def _usage(given: int, said: int) -> Usage:
    return Usage(input_tokens=given, output_tokens=said, total_tokens=given + said)


def _words(conversation: Conversation) -> int:
    texts = [conversation.instructions or ""]
    for item in conversation.items:
        if isinstance(item, Message):
            texts += [getattr(part, "text", "") for part in item.content]
    return sum(len(text.split()) for text in texts)
