"""Run many generations in one batch with transformers' continuous batching.

The API of transformers takes one generation config for all requests. But transformers also calls a
logits processor with the requests of each batch. The logits processor of this module samples the
next token of each request with the settings of this request, and masks all other tokens. So
transformers can only choose the sampled token.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from antiphon.errors import BackendError

from .generation import Generation

PAGE_TOKENS = 64
#: Device → number of prompt tokens per step. Other generations wait until the step ends.
BATCH_TOKENS = {"cpu": 256}
BATCH_TOKENS_GPU = 4096
_NEG_INF = float("-inf")


class BatchRunner:
    """Runs many generations of one model in batches. The model must support paged KV caches.

    ``context``: maximum tokens per generation. ``parallel``: number of concurrent generations. The
    constructor allocates memory for all of them, so call it outside the event loop's thread. It
    raises ``ValueError`` or another exception of transformers if continuous batching does not
    support the model.
    """

    def __init__(self, model: Any, context: int, parallel: int) -> None:
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        device = model.device.type
        self._generations: dict[str, Generation] = {}
        self._names = itertools.count()
        config = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=(math.ceil(context / PAGE_TOKENS) + 1) * parallel,
            max_batch_tokens=BATCH_TOKENS.get(device, BATCH_TOKENS_GPU),
            max_requests_per_batch=parallel,
            # Each step depends on the token that was sampled in the previous step.
            use_async_batching=False,
            use_cuda_graph=False,
            auto_switch_to_flash=device != "cpu",
        )
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
            continuous_batching_config=config,
        )
        self._manager.logit_processor = _token_chooser(self._generations)
        self._manager.warmup()  # allocates the cache
        self._report_cached_tokens(self._manager.batch_processor.cache)
        self._manager.start()

    def _report_cached_tokens(self, cache: Any) -> None:
        """Replace the cache's prefix search with a function that also reports how many prompt
        tokens were cached. Transformers' batching manager does not report this number."""
        search = cache.search_prefix_match

        def search_and_report(name: str, ids: list[int]) -> int:
            cached: int = search(name, ids)
            if (generation := self._generations.get(name)) is not None:
                generation.report_cached_tokens(cached)
            return cached

        cache.search_prefix_match = search_and_report

    def start(self, generation: Generation) -> str:
        """Start a generation. Call this on the event loop. Returns a name for the generation, which
        the caller passes to ``cancel``."""
        name = str(next(self._names))
        self._generations[name] = generation
        self._manager.register_result_handler(name, lambda result: self._on_result(name, result))
        try:
            self._manager.add_request(
                list(generation.prompt.ids),
                request_id=name,
                max_new_tokens=None,
                eos_token_id=-1,
            )
        except RuntimeError as error:  # its thread has ended
            self.cancel(name)
            raise BackendError(f"The engine failed: {error}") from None
        return name

    def cancel(self, name: str) -> None:
        """Remove a generation, whether it is finished or not. Its place in the batch is free from
        the next pass of the model on."""
        generation = self._generations.pop(name, None)
        if generation is not None:
            generation.abort()
            self._manager.cancel_request(name)
            self._manager.output_router.result_handlers.pop(name, None)

    def _on_result(self, name: str, result: Any) -> None:
        """Handle a result that transformers reports for the generation ``name``. If the result
        contains an error, end the generation with this error.

        All other results are ignored. Transformers gets no end token and no token limit, so it
        never ends a generation by itself. Antiphon checks the stop conditions, and then calls
        ``cancel``.
        """
        if result.error and (generation := self._generations.get(name)) is not None:
            generation.fail(BackendError(f"The engine failed: {result.error}"))

    def close(self) -> None:
        """Stop all generations. Blocks until the batching thread has ended."""
        self._manager.stop(hard_stop=True)


def _token_chooser(generations: dict[str, Generation]) -> Any:
    """Create the logits processor that samples the next token of each request.

    ``generations``: name of a request → its generation.
    """
    import torch
    from transformers import LogitsProcessorList
    from transformers.generation.continuous_batching.cb_logits_processors import (
        ContinuousBatchingLogitsProcessor,
        ContinuousBatchingLogitsProcessorList,
    )

    class Choices(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
        supported_kwargs: dict[str, type] = {}  # noqa: RUF012 - declared so by its base
        ignored_kwargs: tuple[str, ...] = ()

        def __init__(self) -> None:
            self._rows: list[Generation | None] = []

        def fill_defaults(self, int32_tensor: Any) -> None:
            int32_tensor.zero_()

        def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Any:
            names = [request.state.request_id for request in requests_with_new_token]
            self._rows = [generations.get(name) for name in names]
            return torch.zeros(len(names), dtype=torch.int32)

        def __call__(self, scores: Any, tensor_arg: Any) -> Any:
            chosen = torch.full_like(scores, _NEG_INF)
            for row, generation in enumerate(self._rows):
                active = generation is not None and not generation.finished
                chosen[row, generation.choose(scores[row]) if active else 0] = 0.0  # type: ignore[union-attr]
            return chosen

    processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([Choices()]))
    processors.tensors_required = 1
    return processors
