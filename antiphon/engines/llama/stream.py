"""One generation of llama.cpp: its events become chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial

from antiphon.engines.base import Sampling
from antiphon.engines.common.stop_conditions import StopConditions
from antiphon.engines.common.thread_channel import ChunkChannel
from antiphon.errors import BackendError
from antiphon.inference.tokens import Chunk, Tokenizer

from .completion import CompletionEvent, CompletionReader, PromptProgress, decode_event
from .partial_tokens import PartialTokens


class LlamaStream:
    """One generation and its chunks. ``feed`` gets the events of llama.cpp, and ``end`` is called
    after the last event. If the generation is paused, ``resume`` is called before the events of the
    next request. All methods are called on the event loop."""

    def __init__(
        self, tokenizer: Tokenizer, partial_tokens: PartialTokens, sampling: Sampling
    ) -> None:
        self._new_reader = partial(CompletionReader, partial_tokens, sampling)
        # llama.cpp itself ends an output that fills the context.
        self._stop_conditions = StopConditions(tokenizer, sampling, sampling.max_tokens)
        self._channel = ChunkChannel()
        self._reader = self._new_reader()
        #: Every id that was sampled so far, including ids that are held back.
        self.sampled: list[int] = []
        #: Whether llama.cpp has started to process the prompt of this request.
        self.started = False
        #: How many tokens of this prompt llama.cpp has computed, as far as it has reported.
        self.processed = 0
        #: The tokens of this prompt; the ids that were sampled, and the tokens that were computed,
        #: before this request.
        self._total = self._first = self._earlier = 0
        self._reports_cached = True
        self._aborted = False

    def resume(self) -> None:
        """Expect the events of a request that continues after the sampled ids."""
        self._earlier += self.computed
        self._reader, self._first = self._new_reader(), len(self.sampled)
        self.started, self.processed, self._total = False, 0, 0

    @property
    def new_tokens(self) -> int:
        """How many ids this request has sampled."""
        return len(self.sampled) - self._first

    @property
    def size(self) -> int:
        """The tokens of the prompt and of the output."""
        return self._total + self.new_tokens

    @property
    def computed(self) -> int:
        """How many tokens this request has computed that were not computed before."""
        return max(0, (self.size if self.new_tokens else self.processed) - self._earlier)

    def abort(self) -> None:
        """Stop the generation at the next event."""
        self._aborted = True

    def offer(self) -> None:
        """Tell the reader that it may end the generation here; see ``Chunk.gives_way``."""
        self._channel.send(Chunk(gives_way=True))

    def end(self, error: BaseException | None = None) -> None:
        """Report that no event will follow. ``error``: why the generation failed, if it did. See
        ``ChunkChannel.fail``."""
        if self._stop_conditions.finished:
            return
        what = "was aborted" if self._aborted else "ended without an answer"
        self._channel.fail(error or BackendError(f"The generation {what}."))

    def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of the generation. Chunks that are ready at the same time are merged.
        Raises ``BackendError`` if the generation fails or is aborted."""
        return self._channel.__aiter__()

    def feed(self, event: bytes) -> bool:
        """Handle one event of llama.cpp. The result True means that the rest of the generation is
        not needed."""
        if self._aborted or self._stop_conditions.finished:
            return True
        try:
            chunk = self._chunk(decode_event(event))
        except Exception as error:
            self.end(error)
            return True
        if chunk is not None:
            self._channel.send(chunk)
        return self._stop_conditions.finished

    def feed_head(self, event: bytes) -> bool:
        """Handle one event of a request that computes only the head of the prompt. The result True
        means that the rest of the request is not needed."""
        progress = decode_event(event).prompt_progress
        if progress is not None and (chunk := self._progress(progress)) is not None:
            self._channel.send(chunk)
        return self._aborted

    def _chunk(self, event: CompletionEvent) -> Chunk | None:
        if event.error is not None:
            raise BackendError(str(event.error["message"]))
        if event.prompt_progress is not None:
            return self._progress(event.prompt_progress)
        output = self._reader.read(event)
        self.sampled += [token.id for token in output.tokens]
        return self._stop_conditions.take(output)

    def _progress(self, progress: PromptProgress) -> Chunk | None:
        self.processed = max(self.processed, progress.processed)
        self._total = max(self._total, progress.total or 0)
        if self.started:
            return None
        self.started = True
        self._earlier = max(self._earlier, progress.cache)
        if not self._reports_cached:  # its own tokens are in the cache, too
            return None
        self._reports_cached = False
        return Chunk(cached_tokens=progress.cache)
