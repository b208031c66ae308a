"""One generation of llama.cpp: its events become chunks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.engines.base import Sampling
from antiphon.engines.common.stop_strings import StopStrings
from antiphon.engines.common.thread_channel import merge_chunks
from antiphon.errors import AntiphonError, BackendError
from antiphon.inference.tokens import Alternative, Chunk, Tokenizer, TokenLogprob

from .partial_tokens import PartialTokens

#: OpenAI's value for an unknown log-probability.
UNKNOWN_LOGPROB = -9999.0


class _Candidate(Struct):
    id: int
    logprob: float


class _Sampled(Struct):
    id: int
    logprob: float
    top_logprobs: list[_Candidate] = []


class _Progress(Struct):
    cache: int
    processed: int = 0


class _Failure(Struct):
    message: str = ""


class _Event(Struct):
    """An event of llama.cpp's endpoint ``/completion``. It declares only the fields that are used
    here."""

    content: str = ""
    tokens: list[int] = []
    tokens_predicted: int = 0
    stop: bool = False
    stop_type: str = ""
    prompt_progress: _Progress | None = None
    completion_probabilities: list[_Sampled] = []
    error: _Failure | None = None


_decode = msgspec.json.Decoder(_Event).decode


class LlamaStream:
    """One generation and its chunks. ``feed`` gets the events of llama.cpp, and ``end`` is called
    after the last event. All methods are called on the event loop."""

    def __init__(
        self, tokenizer: Tokenizer, partial_tokens: PartialTokens, sampling: Sampling
    ) -> None:
        self._tokenizer = tokenizer
        self._partial_tokens = partial_tokens
        self._sampling = sampling
        self._stop_strings = StopStrings(sampling.stop)
        self._special_ids = frozenset(tokenizer.special.values())
        self._pending: deque[TokenLogprob] = deque()
        self._count = 0
        #: Every id that was sampled so far, including ids that are held back.
        self.sampled: list[int] = []
        #: Whether llama.cpp has started to process the prompt.
        self.started = False
        #: How many tokens of the prompt llama.cpp has computed, as far as it has reported.
        self.processed = 0
        self._finished = False
        self._aborted = False
        self._ready: list[Chunk] = []
        self._error: AntiphonError | None = None
        self._wakeup = asyncio.Event()

    def abort(self) -> None:
        """Stop the generation at the next event."""
        self._aborted = True

    def end(self, error: BaseException | None = None) -> None:
        """Report that no event will follow. ``error``: why the generation failed, if it did. An
        ``AntiphonError`` reaches the reader as it is. Any other exception becomes the cause of a
        ``BackendError`` with a general message, because clients see the message."""
        if error is None and not self._finished:
            what = "was aborted" if self._aborted else "ended without an answer"
            error = BackendError(f"The generation {what}.")
        if error is not None and self._error is None and not self._finished:
            if not isinstance(error, AntiphonError):
                failure = BackendError("The engine failed.")
                failure.__cause__ = error
                error = failure
            self._error = error
        self._wakeup.set()

    async def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of the generation. Chunks that are ready at the same time are merged.
        Raises ``BackendError`` if the generation fails or is aborted."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            ready, self._ready = self._ready, []
            if (chunk := merge_chunks(ready)) is not None:
                yield chunk
                if chunk.finish:
                    return
            if self._error is not None:
                raise self._error

    def feed(self, event: bytes) -> bool:
        """Handle one event of llama.cpp. The result True means that the rest of the generation is
        not needed."""
        if self._aborted or self._finished:
            return True
        try:
            chunk = self._chunk(_decode(event))
        except Exception as error:
            self.end(error)
            return True
        if chunk is not None:
            self._finished = chunk.finish is not None
            self._ready.append(chunk)
            self._wakeup.set()
        return self._finished

    def feed_head(self, event: bytes) -> bool:
        """Handle one event of a request that computes only the head of the prompt. The result True
        means that the rest of the request is not needed."""
        progress = _decode(event).prompt_progress
        if progress is not None and (chunk := self._progress(progress)) is not None:
            self._ready.append(chunk)
            self._wakeup.set()
        return self._aborted

    def _chunk(self, event: _Event) -> Chunk | None:
        if event.error is not None:
            raise BackendError(event.error.message)
        if event.prompt_progress is not None:
            return self._progress(event.prompt_progress)
        if event.stop:
            ids, logprobs = self._release(len(self._pending))
            reason: Literal["length", "stop"] = "length" if event.stop_type == "limit" else "stop"
            # llama.cpp withholds the ids of an incomplete character, so they are only counted.
            unreported_tokens = max(0, event.tokens_predicted - self._count)
            return Chunk(ids, logprobs, reason, unreported_tokens=unreported_tokens)
        released = 0
        for token in self._new_tokens(event):
            self._pending.append(token)
            self.sampled.append(token.id)
            released += self._stop_strings.feed(
                b"" if token.id in self._special_ids else self._tokenizer.piece(token.id)
            )
            if token.id in self._sampling.stop_ids and not self._stop_strings.matched_stop:
                ids, logprobs = self._release(len(self._pending))
                return Chunk(ids, logprobs, "stop")
        ids, logprobs = self._release(released)
        if self._stop_strings.matched_stop:
            stop, tail = self._stop_strings.matched_stop, self._stop_strings.tail
            return Chunk(ids, logprobs, "stop", stop_text=stop, tail=tail)
        return Chunk(ids, logprobs) if ids else None

    def _progress(self, progress: _Progress) -> Chunk | None:
        self.processed = max(self.processed, progress.processed)
        if self.started:
            return None
        self.started = True
        return Chunk(cached_tokens=progress.cache)

    def _new_tokens(self, event: _Event) -> list[TokenLogprob]:
        """Return the tokens of an event. Tokens that llama.cpp withheld until now come first."""
        ids = event.tokens
        withheld = event.tokens_predicted - self._count - len(ids)
        self._count = event.tokens_predicted
        known = [self._logprob(each) for each in event.completion_probabilities]
        if withheld > 0:
            ids = self._partial_tokens.recover(event.content, ids[-1], withheld)
        unknown = ids[: len(ids) - len(known)]
        return [*(TokenLogprob(id, UNKNOWN_LOGPROB) for id in unknown), *known]

    def _logprob(self, sampled: _Sampled) -> TokenLogprob:
        top = sampled.top_logprobs[: self._sampling.logprobs or 0]
        return TokenLogprob(
            sampled.id, sampled.logprob, tuple(Alternative(t.id, t.logprob) for t in top)
        )

    def _release(self, count: int) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
        tokens = tuple(self._pending.popleft() for _ in range(count))
        ids = tuple(token.id for token in tokens)
        return ids, tokens if self._sampling.logprobs is not None else ()
