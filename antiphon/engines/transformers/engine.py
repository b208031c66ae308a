"""An engine that uses Hugging Face's library ``transformers`` in this process. It runs any model
folder that ``transformers`` can load.

If the model supports a paged KV cache, several generations run in one batch. Prompts with images,
and models without a paged cache, run one generation at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import msgspec

from antiphon.engines.base import DEFAULT_LOAD_OPTIONS, Capabilities, LoadOptions, Sampling
from antiphon.engines.common.grammar_state import GrammarState, GrammarTracker
from antiphon.engines.common.image_token_cache import ImageTokenCache
from antiphon.engines.common.request_checks import (
    check_constraint,
    check_request,
    images_unsupported_error,
    sampling_values,
    too_long_error,
)
from antiphon.engines.common.stop_conditions import StopConditions
from antiphon.engines.common.thread_channel import ThreadChannel
from antiphon.engines.huggingface.model_folder import read_folder
from antiphon.errors import BackendError, InvalidRequest, SetupError, first_line
from antiphon.inference.tokens import Chunk, EncodedImage, ModelCard, Prompt, Tokenizer
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.installation import require_package
from antiphon.support.machine import spare_cpus

from .continuous_batching import BatchRunner
from .generation import Generation
from .images import ImageProcessor
from .load_progress import report_load_progress
from .sampler import Sampler
from .sequential import SequentialRunner

EXTRA = "transformers"
DEFAULT_CONTEXT = 8192
MAX_LOGPROBS = 20


async def load(folder: Path, options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> TransformersEngine:
    """Load the model in ``folder`` (``config.json``, ``tokenizer.json``, safetensors).

    ``options.context_size``: maximum tokens of each of the ``parallel`` generations. The default is
    8192; the limit is the size that the model was trained for. ``options.threads``: the number of
    PyTorch's threads in the whole process. ``options.engine_options``: ``device`` (``cuda`` or
    ``cpu``; the default is this machine's accelerator), ``batching`` (``paged`` or ``single``; the
    default is ``paged`` where possible), and any other argument of ``from_pretrained`` (``dtype``,
    ``attn_implementation``, ``quantization_config`` …). ``options.progress`` is called on a worker
    thread. Its first argument is always ``weights``.

    Raises ``SetupError`` if a required package is not installed, an option is invalid, or the model
    cannot be loaded.
    """
    for package in ("torch", "transformers", "tokenizers"):
        require_package(package, package, EXTRA)
    arguments = dict(options.engine_options)
    device, batching = arguments.pop("device", None), arguments.pop("batching", None)
    if batching not in (None, "paged", "single"):
        raise SetupError(f'engine_options.batching is "paged" or "single", not {batching!r}')
    model_folder = await asyncio.to_thread(
        read_folder, folder, name=options.name, context_size=options.context_size or DEFAULT_CONTEXT
    )
    card = model_folder.card
    accepts_images = await asyncio.to_thread(_has_image_processor, folder)
    with report_load_progress(folder, options.progress):
        model = await asyncio.to_thread(
            _load_model, folder, device, options.threads, arguments, accepts_images
        )
    image_processor = (
        await asyncio.to_thread(_load_image_processor, folder, model_folder.tokenizer)
        if accepts_images
        else None
    )
    batch_runner = None
    # Models with images keep state between steps, so their generations must not alternate.
    if batching == "paged" or (batching is None and not accepts_images):
        batch_runner = await asyncio.to_thread(
            _create_batch_runner, model, card, options.parallel, batching == "paged"
        )
    return TransformersEngine(
        model,
        model_folder.tokenizer,
        card,
        batch_runner,
        parallel=options.parallel,
        image_processor=image_processor,
    )


def _has_image_processor(folder: Path) -> bool:
    """Return whether the model has an image encoder and the folder has the configuration of an
    image preprocessor. Raises ``SetupError`` if ``config.json`` cannot be read."""
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, ValueError) as error:
        raise SetupError(f"{folder / 'config.json'} cannot be read: {error}") from None
    files = ("preprocessor_config.json", "processor_config.json")
    return "vision_config" in config and any((folder / name).is_file() for name in files)


def _load_image_processor(folder: Path, tokenizer: Tokenizer) -> ImageProcessor:
    require_package("PIL", "Pillow", EXTRA)
    try:
        return ImageProcessor(folder, tokenizer)
    except Exception as error:
        raise SetupError(
            f"transformers cannot load the image processor of {folder}: {error}"
        ) from None


def _load_model(
    folder: Path,
    device: str | None,
    threads: int | None,
    options: dict[str, Any],
    accepts_images: bool,
) -> Any:
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(threads or spare_cpus())
    if device is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        device = "cpu" if accelerator is None else accelerator.type
    # bfloat16 is much slower than float32 on CPUs without matrix units for it.
    options.setdefault("dtype", torch.float32 if device == "cpu" else "auto")
    try:
        kind = "AutoModelForImageTextToText" if accepts_images else "AutoModelForCausalLM"
        model = getattr(transformers, kind).from_pretrained(
            folder, local_files_only=True, **options
        )
        return model.to(device).eval()
    except Exception as error:  # transformers raises many kinds of exceptions
        raise SetupError(f"transformers cannot load {folder}: {first_line(error)}") from None


def _create_batch_runner(
    model: Any, card: ModelCard, parallel: int, required: bool
) -> BatchRunner | None:
    """Create the batch runner. ``required``: whether the model must support batching.

    For a model that does not support batching, the function raises ``SetupError`` if ``required``
    is True, and returns None if ``required`` is False.
    """
    try:
        return BatchRunner(model, card.context_size, parallel)
    except Exception as error:
        if required:
            raise SetupError(f"transformers cannot batch {card.name}: {error}") from None
        return None


class TransformersEngine:
    """``Engine`` that runs one transformers model. ``load`` creates it. Use it on one event loop
    only."""

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        card: ModelCard,
        batch_runner: BatchRunner | None,
        *,
        parallel: int,
        image_processor: ImageProcessor | None,
    ) -> None:
        self.tokenizer = tokenizer
        self.card = card
        self._batch_runner = batch_runner
        self._sequential_runner = (
            SequentialRunner(model, card.context_size)
            if image_processor or not batch_runner
            else None
        )
        self._image_processor = image_processor
        self._image_token_cache = ImageTokenCache()
        self._grammars = GrammarTracker(tokenizer)
        # A paged cache holds ``parallel`` generations. Further requests wait here, where they can
        # be cancelled.
        self._capacity = FairLimiter(parallel)
        self._running: set[Generation] = set()
        self._closed = False
        self.capabilities = Capabilities(
            max_logprobs=MAX_LOGPROBS,
            constraints=True,
            masks_delay_others=True,
            images="template" if self._image_processor is not None else None,
            cached_tokens=self._batch_runner is not None,
            seed=True,
            logit_bias=True,
            penalties=True,
        )

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        check_request(self, prompt, sampling)
        image_tokens = sum([await self.image_tokens(image) for image in prompt.images])
        context_left = self.card.context_size - len(prompt.ids) - image_tokens
        if context_left < 1:
            raise too_long_error(len(prompt.ids) + image_tokens, self.card)
        grammar = await self._grammar(sampling)
        async with self._capacity.slot(sampling.tenant):
            if self._closed:
                raise BackendError("The engine is closed.")
            generation = self._generation(prompt, sampling, context_left, grammar)
            self._running.add(generation)
            cancel = self._start(generation)
            try:
                async for chunk in generation.channel:
                    yield chunk
            finally:
                self._running.discard(generation)
                cancel()

    def _start(self, generation: Generation) -> Callable[[], None]:
        """Start the generation. Return a function that cancels it."""
        if self._batch_runner is not None and not generation.prompt.images:
            name, runner = self._batch_runner.start(generation), self._batch_runner
            return lambda: runner.cancel(name)
        assert self._sequential_runner is not None
        self._sequential_runner.start(generation, self._image_processor)
        return generation.abort

    async def image_tokens(self, image: EncodedImage) -> int:
        """Return how many tokens of the context the image takes. See ``ImageMeasurer``."""
        if self._image_processor is None:
            raise images_unsupported_error()
        extra_tokens = self._image_processor.extra_tokens
        return await self._image_token_cache.get_or_measure(
            image, lambda image: asyncio.to_thread(extra_tokens, image)
        )

    async def _grammar(self, sampling: Sampling) -> GrammarState | None:
        """Return the first state of the request's grammar, or None if it has no grammar."""
        check_constraint(sampling.constraint)
        if sampling.constraint is None:
            return None
        lark, end_ids = sampling.constraint.lark, self.tokenizer.end_ids
        grammar = await asyncio.to_thread(self._grammars.start, lark, (), end_ids)
        if grammar is None:
            raise InvalidRequest(
                "The grammar cannot be used: this model has no end token.", code="invalid_grammar"
            )
        return grammar

    def _generation(
        self, prompt: Prompt, sampling: Sampling, context_left: int, grammar: GrammarState | None
    ) -> Generation:
        sampler = Sampler(
            sampling,
            prompt.ids,
            values=sampling_values(sampling, self.card),
            end_ids=self.tokenizer.end_ids,
            grammar=grammar,
        )
        stop_conditions = StopConditions(self.tokenizer, sampling, context_left)
        return Generation(
            prompt, sampler, stop_conditions, ThreadChannel(asyncio.get_running_loop())
        )

    async def close(self) -> None:
        self._closed = True
        for generation in self._running:
            generation.fail(BackendError("The engine is closed."))
        for runner in (self._batch_runner, self._sequential_runner):
            if runner is not None:
                await asyncio.to_thread(runner.close)
        self._batch_runner = self._sequential_runner = None
