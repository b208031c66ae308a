"""An engine without a model: it plays given texts as tokens, and remembers what it was asked.

What a real engine must do it does as well: limits, stop strings, end tokens, constraints, aborts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from antiphon.engines.base import Capabilities, Sampling
from antiphon.engines.stops import StopStrings
from antiphon.errors import BackendError
from antiphon.tokens import Alternative, Chunk, ModelCard, Prompt, TokenLogprob

from .tokenizer import END, ByteTokenizer

__all__ = ["ScriptedEngine"]

Reply = str | Exception
_ABLE = Capabilities(
    max_logprobs=20,
    constraints=True,
    cached_tokens=True,
    seed=True,
    logit_bias=True,
    penalties=True,
)
_LOGPROB = -0.5


class ScriptedEngine:
    """``Engine`` over the ``ByteTokenizer``.

    ``replies`` are played one a call, the last one again and again; literals of special tokens in
    them become these tokens, and the end token follows unless the text holds one. An exception is
    raised instead. A function gets the prompt's text and gives the reply. ``chunk``: tokens handed
    over together; ``wait_s``: pause before each chunk.
    """

    def __init__(
        self,
        replies: Sequence[Reply] | Callable[[str], Reply] = ("Hello!",),
        *,
        special: Iterable[str] = (),
        card: ModelCard | None = None,
        capabilities: Capabilities = _ABLE,
        chunk: int = 1,
        wait_s: float = 0,
    ) -> None:
        self.tokenizer = ByteTokenizer(tuple(special))
        self.card = card or ModelCard(
            name="scripted", context_size=4096, eos_token=END, fingerprint="bytes"
        )
        self.capabilities = capabilities
        self._replies = replies
        self._chunk = chunk
        self._wait_s = wait_s
        #: What was asked, in order.
        self.requests: list[tuple[Prompt, Sampling]] = []
        #: Ids handed over by each call.
        self.sampled: list[list[int]] = []
        #: Calls that were closed before their end.
        self.aborted = 0
        self.closed = False

    def text(self, prompt: Prompt) -> str:
        """A prompt as text."""
        return b"".join(map(self.tokenizer.piece, prompt.ids)).decode("utf-8", "replace")

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        if self.closed:
            raise BackendError("The engine is closed.")
        self.requests.append((prompt, sampling))
        handed: list[int] = []
        self.sampled.append(handed)
        reply = self._reply(prompt, len(self.requests) - 1)
        if isinstance(reply, Exception):
            raise reply
        ended = False
        try:
            yield Chunk(cached_tokens=self._cached(prompt))
            for chunk in self._chunks(reply, sampling):
                await asyncio.sleep(self._wait_s)
                handed += chunk.ids
                ended = chunk.finish is not None
                yield chunk
        finally:
            self.aborted += not ended

    async def close(self) -> None:
        self.closed = True

    def _reply(self, prompt: Prompt, number: int) -> Reply:
        if callable(self._replies):
            return self._replies(self.text(prompt))
        return self._replies[min(number, len(self._replies) - 1)]

    def _cached(self, prompt: Prompt) -> int:
        """As if everything that was ever asked or answered were still in a cache."""
        before = zip(self.requests[:-1], self.sampled, strict=False)
        known = [(*asked.ids, *said) for (asked, _), said in before]
        return max((_common(ids, prompt.ids) for ids in known), default=0)

    def _chunks(self, reply: str, sampling: Sampling) -> Iterable[Chunk]:
        ends = self.tokenizer.end_ids | set(sampling.stop_ids)
        ids = self.tokenizer.encode(reply, special=True)
        if not ends & set(ids):
            ids.append(self.tokenizer.special[END])
        last = next(n for n, id in enumerate(ids) if id in ends)
        limited = ids[: min(last + 1, sampling.max_tokens)]
        finish = "stop" if len(limited) == last + 1 else "length"
        stops = StopStrings(sampling.stop)
        pending: list[int] = []
        ready: list[int] = []
        for id in limited:
            pending.append(id)
            released = stops.feed(self.tokenizer.piece(id) if id < 256 else b"")
            ready += pending[:released]
            del pending[:released]
            if stops.found:
                yield self._said(
                    ready, sampling, Chunk(finish="stop", stop_text=stops.found, tail=stops.tail)
                )
                return
            if len(ready) >= self._chunk and id is not limited[-1]:
                yield self._said(ready, sampling, Chunk())
                ready = []
        yield self._said([*ready, *pending], sampling, Chunk(finish=finish))  # type: ignore[arg-type]

    def _said(self, ids: Sequence[int], sampling: Sampling, chunk: Chunk) -> Chunk:
        logprobs: tuple[TokenLogprob, ...] = ()
        if (count := sampling.logprobs) is not None:
            logprobs = tuple(
                TokenLogprob(
                    id,
                    _LOGPROB,
                    tuple(
                        Alternative((id + n) % self.tokenizer.size, _LOGPROB - n)
                        for n in range(count)
                    ),
                )
                for id in ids
            )
        return Chunk(
            ids=tuple(ids),
            logprobs=logprobs,
            finish=chunk.finish,
            stop_text=chunk.stop_text,
            tail=chunk.tail,
        )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
