"""An engine without a model, for tests. It returns scripted texts as tokens and records its calls.

It handles limits, stop strings, end tokens and aborts like a real engine. Constraints, seeds and
biases are accepted and recorded, but do not change the texts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from itertools import cycle
from typing import Literal

from antiphon.engines.base import Capabilities, Sampling
from antiphon.engines.common.stop_strings import StopStrings
from antiphon.errors import CONTEXT_LENGTH_EXCEEDED, BackendError, InvalidRequest
from antiphon.inference.tokens import Alternative, Chunk, ModelCard, Prompt, TokenLogprob

from .tokenizer import END, ByteTokenizer

__all__ = ["ScriptedEngine"]

Reply = str | Exception
_CAPABILITIES = Capabilities(
    max_logprobs=20,
    constraints=True,
    cached_tokens=True,
    separates_caches=True,
    seed=True,
    logit_bias=True,
    penalties=True,
)
_LOGPROB = -0.5


class ScriptedEngine:
    """``Engine`` with scripted replies and a ``ByteTokenizer``.

    - ``replies``: a list of replies, or a function that gets the prompt's text and returns the
      reply. Each call uses the next reply of a list. When the list is at its end, the last reply is
      repeated. If a reply is an exception, the call raises it. An end token is added to each reply.
    - ``special``: names of the tokenizer's special tokens. If a reply contains such a name, the
      name is encoded as the special token.
    - ``chunk``: number of tokens per chunk.
    - ``wait_s``: seconds to wait before each chunk.
    """

    def __init__(
        self,
        replies: Sequence[Reply] | Callable[[str], Reply] = ("Hello!",),
        *,
        special: Iterable[str] = (),
        card: ModelCard | None = None,
        capabilities: Capabilities = _CAPABILITIES,
        chunk: int = 1,
        wait_s: float = 0,
    ) -> None:
        self.tokenizer = ByteTokenizer(tuple(special))
        self.card = card or ModelCard(
            name="scripted", context_size=4096, eos_token=END, fingerprint="bytes"
        )
        self.capabilities = capabilities
        self._replies = replies
        self._chunk_size = chunk
        self._wait_s = wait_s
        #: The prompt and the sampling of each call, in the order of the calls.
        self.requests: list[tuple[Prompt, Sampling]] = []
        #: The token ids that each call has yielded.
        self.sampled: list[list[int]] = []
        #: Number of calls that were closed before their end.
        self.aborted = 0
        self.closed = False

    def text(self, prompt: Prompt) -> str:
        """Decode the token ids of a prompt to text."""
        return b"".join(map(self.tokenizer.piece, prompt.ids)).decode("utf-8", "replace")

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        self._check(prompt)
        self.requests.append((prompt, sampling))
        sampled: list[int] = []
        self.sampled.append(sampled)
        reply = self._reply(prompt, len(self.requests) - 1)
        if isinstance(reply, Exception):
            raise reply
        ended = False
        try:
            yield Chunk(cached_tokens=self._cached(prompt, sampling))
            for chunk in self._chunks(reply, sampling):
                await asyncio.sleep(self._wait_s)
                if self.closed:
                    raise BackendError("The engine is closed.")
                sampled += chunk.ids
                ended = chunk.finish is not None
                yield chunk
        finally:
            self.aborted += not ended

    async def close(self) -> None:
        self.closed = True

    def _check(self, prompt: Prompt) -> None:
        if self.closed:
            raise BackendError("The engine is closed.")
        if prompt.images and self.capabilities.images is None:
            raise InvalidRequest("The script cannot see images.", param="input")
        if len(prompt.ids) >= self.card.context_size:
            raise InvalidRequest(
                "The prompt is too long.", param="input", code=CONTEXT_LENGTH_EXCEEDED
            )

    def _reply(self, prompt: Prompt, number: int) -> Reply:
        if callable(self._replies):
            return self._replies(self.text(prompt))
        return self._replies[min(number, len(self._replies) - 1)]

    def _cached(self, prompt: Prompt, sampling: Sampling) -> int:
        """Return how many tokens at the beginning of a prompt are in the prefix cache. The cache
        contains all earlier prompts and replies with the same ``prefix_salt``. The last token of a
        prompt never counts as cached.
        """
        before = zip(self.requests[:-1], self.sampled, strict=False)
        earlier = [
            (*asked.ids, *said)
            for (asked, options), said in before
            if options.prefix_salt == sampling.prefix_salt
        ]
        longest = max((_common(ids, prompt.ids) for ids in earlier), default=0)
        return min(longest, len(prompt.ids) - 1)

    def _chunks(self, reply: str, sampling: Sampling) -> Iterator[Chunk]:
        stops = StopStrings(sampling.stop)
        pending: list[int] = []
        ready: list[int] = []
        for id, finish in self._tokens(reply, sampling):
            pending.append(id)
            released = stops.feed(self.tokenizer.piece(id) if id < 256 else b"")
            ready += pending[:released]
            del pending[:released]
            if stops.matched_stop:
                last = Chunk(finish="stop", stop_text=stops.matched_stop, tail=stops.tail)
                yield self._chunk(ready, sampling, last)
                return
            if finish is not None:
                yield self._chunk([*ready, *pending], sampling, Chunk(finish=finish))
                return
            if len(ready) >= self._chunk_size:
                yield self._chunk(ready, sampling, Chunk())
                ready = []

    def _tokens(
        self, reply: str, sampling: Sampling
    ) -> Iterator[tuple[int, Literal["stop", "length"] | None]]:
        """Yield the token ids of a reply. Each id comes with the finish reason if it is the last
        id, and otherwise with None. With ``ignore_eos``, the reply is repeated until the token
        limit."""
        ends = set(sampling.stop_ids)
        ids = self.tokenizer.encode(reply, special=True)
        if not sampling.ignore_eos:
            ends |= self.tokenizer.end_ids
            ids.append(self.tokenizer.special[END])
        for count, id in enumerate(cycle(ids), start=1):
            yield id, "stop" if id in ends else "length" if count >= sampling.max_tokens else None

    def _chunk(self, ids: Sequence[int], sampling: Sampling, chunk: Chunk) -> Chunk:
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
