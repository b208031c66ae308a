"""A backend without a model. It returns replies from scripts, for tests, benchmarks and
examples."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from antiphon.backends.base import Backend, BackendCapabilities, DeltaSink, Reply
from antiphon.errors import CannotContinue, RequestError, RunError
from antiphon.inference.conversation import Conversation, Options, ResumePoint
from antiphon.stream.deltas import Close, Delta, Finish, Open, SampledTokens, Text
from antiphon.support.push import send
from antiphon.wire.items import Message
from antiphon.wire.response import Usage

#: The script of one reply. A text is sent word by word, and deltas are sent unchanged. A
#: ``RequestError`` is raised before the run, and a ``RunError`` when the generation starts.
Script = str | Sequence[Delta] | RequestError | RunError

#: The deltas of a reply, in the batches in which they are yielded.
Batches = Sequence[tuple[Delta, ...]]

#: A script's batches and the number of its words, or the error that it raises.
_Playable = tuple[Batches | RunError, int] | RequestError

#: Maximum number of requests that a backend records, because it may run for days.
_MAX_REQUESTS = 1000

_WORD = re.compile(r"\s*\S+|\s+\Z")


class ScriptedBackend(Backend):
    """``Backend`` that returns replies from scripts.

    ``scripts``: a list of scripts, or a function that returns the script for a request. Each
    request gets the next script of the list. After the last script, the first script follows.
    ``wait_s``: pause in seconds before every delta. ``tokens``: whether the reply has a token id
    for every delta. This id is the index of the delta. With token ids, an interrupted reply can be
    continued.

    If the deltas of a script do not end with ``Finish``, a ``Finish`` is added. Each word counts as
    a token.
    """

    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}
    capabilities = BackendCapabilities(images=True, audio_video=True, hears=True)

    def __init__(
        self,
        scripts: Sequence[Script] | Callable[[Conversation, Options], Script] = ("Hello!",),
        *,
        context_size: int | None = None,
        wait_s: float = 0,
        tokens: bool = False,
    ) -> None:
        self.context_size = context_size
        self._has_tokens = tokens
        #: The batches of each script, prepared once.
        self._prepared_scripts: dict[int, _Playable] = {}
        self._scripts = scripts
        self._wait_s = wait_s
        self._request_count = 0
        #: The latest requests, in order.
        self.requests: deque[tuple[Conversation, Options]] = deque(maxlen=_MAX_REQUESTS)
        #: Number of replies that were closed before their end.
        self.aborted = 0
        self.closed = False

    async def prepare(self, conversation: Conversation, options: Options) -> ScriptedReply:
        self.requests.append((conversation, options))
        playable = self._next(conversation, options)
        self._request_count += 1
        if isinstance(playable, RequestError):
            raise playable
        batches, words = playable
        return ScriptedReply(self, batches, _count_words(conversation), words, self._wait_s)

    def _next(self, conversation: Conversation, options: Options) -> _Playable:
        if callable(self._scripts):
            return self._prepare_script(self._scripts(conversation, options))
        at = self._request_count % len(self._scripts)
        if at not in self._prepared_scripts:
            self._prepared_scripts[at] = self._prepare_script(self._scripts[at])
        return self._prepared_scripts[at]

    def _prepare_script(self, script: Script) -> _Playable:
        if isinstance(script, RequestError):
            return script
        if isinstance(script, RunError):
            return script, 0
        deltas = _message_deltas(script) if isinstance(script, str) else script
        words = sum(isinstance(delta, Text) for delta in deltas)
        return _batches(_with_token_ids(deltas) if self._has_tokens else deltas), words

    async def close(self) -> None:
        self.closed = True


class ScriptedReply(Reply):
    """``Reply`` of a ``ScriptedBackend``. It pushes the deltas of a script instead of a model's
    output."""

    input_tokens = 0

    def __init__(
        self,
        backend: ScriptedBackend,
        batches: Batches | RunError,
        input_tokens: int,
        words: int,
        wait_s: float,
    ) -> None:
        self._backend = backend
        self._batches = batches
        self._count_words = words
        self._wait_s = wait_s
        self.input_tokens = input_tokens

    def resume(self, point: ResumePoint) -> ScriptedReply:
        batches = () if isinstance(self._batches, RunError) else self._batches
        sampled = len(point.sampled_ids)
        if sampled and not any(
            isinstance(delta, SampledTokens) for batch in batches for delta in batch
        ):
            raise CannotContinue("it was played without tokens")
        if not sampled:
            return self
        return ScriptedReply(
            self._backend, batches[sampled:], self.input_tokens, self._count_words, self._wait_s
        )

    async def pump(self, sink: DeltaSink) -> None:
        if isinstance(self._batches, RunError):
            raise self._batches
        batch: tuple[Delta, ...] = (Close(),)
        try:
            for batch in self._batches:  # keep this loop cheap: benchmarks measure the server
                await asyncio.sleep(self._wait_s)
                if (rest := sink(batch)) is not None:
                    await rest
            if not isinstance(batch[-1], Finish):
                batch = (Finish("stop", _usage(self.input_tokens, self._count_words)),)
                await send(sink, batch)
        finally:
            self._backend.aborted += not isinstance(batch[-1], Finish)


def _batches(deltas: Iterable[Delta]) -> Batches:
    """Group the deltas into batches. Each batch contains one delta. If ``SampledTokens`` precede
    this delta, they are in the same batch."""
    batches: list[tuple[Delta, ...]] = []
    sampled: tuple[Delta, ...] = ()
    for delta in deltas:
        if isinstance(delta, SampledTokens):
            sampled = (delta,)
        else:
            batches.append((*sampled, delta))
            sampled = ()
    return [*batches, sampled] if sampled else batches


def _message_deltas(text: str) -> list[Delta]:
    """Return the deltas of a message with ``text``, with one delta per word."""
    words: list[Delta] = [Text(word) for word in _WORD.findall(text)]
    return [Open(Message(role="assistant", content=())), *words, Close()]


def _with_token_ids(deltas: Iterable[Delta]) -> list[Delta]:
    """Return the deltas with a ``SampledTokens`` before each delta, so that an interrupted reply
    can be continued. Each ``SampledTokens`` contains one token id: the index of the delta after
    it."""
    return [
        each for number, delta in enumerate(deltas) for each in (SampledTokens((number,)), delta)
    ]


def _usage(input_tokens: int, output_tokens: int) -> Usage:
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens,
    )


def _count_words(conversation: Conversation) -> int:
    texts = [conversation.instructions or ""]
    for item in conversation.items:
        texts += [getattr(part, "text", "") for part in item.message_parts]
    return sum(len(text.split()) for text in texts)
