"""One generation of llama.cpp: its events become chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from antiphon.engines.base import Sampling
from antiphon.engines.common.stop_conditions import StopConditions
from antiphon.engines.common.thread_channel import ChunkChannel
from antiphon.errors import BackendError
from antiphon.inference.tokens import Chunk, Tokenizer

from .completion import CompletionEvent, CompletionReader, PromptProgress, decode_event
from .partial_tokens import PartialTokens


class LlamaStream:
    """One generation and its chunks. ``feed`` gets the events of llama.cpp, and ``end`` is called
    after the last event. All methods are called on the event loop."""

    def __init__(
        self, tokenizer: Tokenizer, partial_tokens: PartialTokens, sampling: Sampling
    ) -> None:
        self._reader = CompletionReader(partial_tokens, sampling)
        # llama.cpp itself ends an output that fills the context.
        self._stop_conditions = StopConditions(tokenizer, sampling, sampling.max_tokens)
        self._channel = ChunkChannel()
        #: Every id that was sampled so far, including ids that are held back.
        self.sampled: list[int] = []
        #: Whether llama.cpp has started to process the prompt.
        self.started = False
        #: How many tokens of the prompt llama.cpp has computed, as far as it has reported.
        self.processed = 0
        self._aborted = False

    def abort(self) -> None:
        """Stop the generation at the next event."""
        self._aborted = True

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
        if self.started:
            return None
        self.started = True
        return Chunk(cached_tokens=progress.cache)
