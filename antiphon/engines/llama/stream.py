"""Run one llama.cpp generation on a thread, and pass its chunks to the event loop.

The thread also parses the events of llama.cpp's Python binding.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from antiphon.engines.base import Sampling
from antiphon.engines.common.stop_strings import StopStrings
from antiphon.engines.common.thread_channel import ThreadChannel
from antiphon.errors import BackendError
from antiphon.inference.tokens import Alternative, Chunk, Tokenizer, TokenLogprob

from .partial_tokens import PartialTokens

__all__ = ["LlamaStream"]

#: OpenAI's value for an unknown log-probability.
UNKNOWN_LOGPROB = -9999.0


class _Candidate(Struct):
    id: int
    logprob: float


class _Sampled(Struct):
    id: int
    logprob: float
    top_logprobs: list[_Candidate] = []


class _Logprobs(Struct):
    content: list[_Sampled] = []


class _Choice(Struct):
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Progress(Struct):
    cache: int


class _Verbose(Struct):
    content: str = ""
    tokens: list[int] = []
    tokens_predicted: int = 0
    prompt_progress: _Progress | None = None


class _Failure(Struct):
    message: str = ""


class _Event(Struct):
    """An event of llama.cpp's Python binding. It declares only the fields that are used here."""

    choices: list[_Choice] = []
    verbose: _Verbose = field(name="__verbose", default_factory=_Verbose)
    error: _Failure | None = None


_decode = msgspec.json.Decoder(_Event).decode


class LlamaStream:
    """One generation and its chunks. ``run`` is called on a separate thread. All other public
    methods are called on the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tokenizer: Tokenizer,
        partial_tokens: PartialTokens,
        sampling: Sampling,
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
        self._finished = False
        # Shared between the two threads:
        self._channel = ThreadChannel(loop)
        self._aborted = False

    # --- on the event loop ---

    def abort(self) -> None:
        """Stop the generation after at most one more token. The thread of ``run`` then ends by
        itself."""
        self._aborted = True

    def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of the generation. Chunks that are ready at the same time are merged.
        Raises ``BackendError`` if the generation fails or is aborted."""
        return self._channel.__aiter__()

    # --- on the generation's thread ---

    def run(self, server: Any, request: Callable[[], bytes]) -> None:
        """Run the generation on the calling thread.

        ``request``: a function that returns the request's body. It is called on this thread because
        encoding images takes time.
        """
        try:
            if not self._aborted:
                server.handle_completions(request(), self._read)
            if not self._finished:
                what = "was aborted" if self._aborted else "ended without an answer"
                self._channel.fail(BackendError(f"The generation {what}."))
        except Exception as error:
            self._channel.fail(error)

    def _read(self, event: bytes) -> bool:
        """Handle one event of llama.cpp's Python binding. The result True tells the binding to stop
        the generation."""
        if self._aborted or self._finished:
            return True
        try:
            chunk = self._chunk(_decode(event))
        except Exception as error:  # the binding would swallow it
            self._finished = True
            self._channel.fail(error)
        else:
            if chunk is not None:
                self._finished = chunk.finish is not None
                # Not `|=`, which could overwrite an abort from the event loop's thread.
                if not self._channel.send(chunk):
                    self._aborted = True
        return self._finished or self._aborted

    def _chunk(self, event: _Event) -> Chunk | None:
        if event.error is not None:
            raise BackendError(event.error.message)
        verbose = event.verbose
        if verbose.prompt_progress is not None:
            return self._progress(verbose.prompt_progress)
        choice = event.choices[0]
        if choice.finish_reason is not None:
            ids, logprobs = self._release(len(self._pending))
            reason: Literal["length", "stop"] = (
                "length" if choice.finish_reason == "length" else "stop"
            )
            # llama.cpp withholds the ids of an incomplete character, so they are only counted.
            unreported_tokens = max(0, verbose.tokens_predicted - self._count)
            return Chunk(ids, logprobs, reason, unreported_tokens=unreported_tokens)
        released = 0
        for token in self._new_tokens(choice, verbose):
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
        if self.started:
            return None
        self.started = True
        return Chunk(cached_tokens=progress.cache)

    def _new_tokens(self, choice: _Choice, verbose: _Verbose) -> list[TokenLogprob]:
        """Return the tokens of an event. Tokens that llama.cpp withheld until now come first."""
        ids = verbose.tokens
        withheld = verbose.tokens_predicted - self._count - len(ids)
        self._count = verbose.tokens_predicted
        known = [self._logprob(each) for each in choice.logprobs.content] if choice.logprobs else []
        if withheld > 0:
            ids = self._partial_tokens.recover(verbose.content, ids[-1], withheld)
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
