"""The engine over Hugging Face ``transformers``, in this process: any folder it can load.

Generations share batches where the model's cache can be paged and run one after another where it
cannot, or where there are images. This module knows how a model is loaded and what it can do; how
tokens are drawn and batched is told elsewhere.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import msgspec

from antiphon.engines.base import DEFAULT_LOAD_OPTIONS, Capabilities, LoadOptions, Sampling
from antiphon.engines.common.pillow_images import require
from antiphon.engines.common.request_checks import cannot_see, check_request, too_long
from antiphon.engines.common.stop_conditions import StopConditions
from antiphon.engines.common.thread_channel import ThreadChannel
from antiphon.engines.common.token_masks import Grammars, check_grammar
from antiphon.engines.huggingface.model_folder import read_folder
from antiphon.errors import BackendError, SetupError, first_line
from antiphon.tokens import Chunk, Image, ModelCard, Prompt, Tokenizer

from .continuous_batching import Paged
from .generation import Generation
from .images import Eyes
from .load_progress import telling
from .sampler import Sampler
from .sequential import Single

__all__ = ["TransformersEngine", "load"]

EXTRA = "transformers"
DEFAULT_CONTEXT = 8192
MAX_LOGPROBS = 20


async def load(folder: Path, options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> TransformersEngine:
    """Load the model in ``folder`` (``config.json``, ``tokenizer.json``, safetensors).

    ``options.context_size``: tokens of each of the ``parallel`` generations, at most and by default
    what the model was trained for, but no more than 8192 unless it is set. ``options.threads``:
    PyTorch's, for the whole process. ``options.engine_options``: ``device`` (``cuda``, ``cpu``; by
    default the accelerator of this machine), ``batching`` (``paged``, ``single``; by default paged
    where that is possible), and any other argument of ``from_pretrained`` (``dtype``,
    ``attn_implementation``, ``quantization_config`` …). ``options.progress`` is called in a thread
    with the name ``weights``.

    Raises ``SetupError``: the extra is not installed, or the model cannot be loaded.
    """
    _require()
    arguments = dict(options.engine_options)
    device, batching = arguments.pop("device", None), arguments.pop("batching", None)
    if batching not in (None, "paged", "single"):
        raise SetupError(f'engine_options.batching is "paged" or "single", not {batching!r}')
    described = await asyncio.to_thread(
        read_folder, folder, name=options.name, context_size=options.context_size or DEFAULT_CONTEXT
    )
    card = described.card
    sees = await asyncio.to_thread(_sees, folder)
    with telling(folder, options.progress):
        model = await asyncio.to_thread(_model, folder, device, options.threads, arguments, sees)
    eyes = await asyncio.to_thread(_eyes, folder, described.tokenizer) if sees else None
    paged = None
    # Models that see keep state between two steps, which others' steps must not come between.
    if batching == "paged" or (batching is None and not sees):
        paged = await asyncio.to_thread(_paged, model, card, options.parallel, batching == "paged")
    grammars = await asyncio.to_thread(_grammars, folder, model, described.tokenizer)
    return TransformersEngine(
        model, described.tokenizer, card, paged, grammars, parallel=options.parallel, eyes=eyes
    )


def _require() -> None:
    for package in ("torch", "transformers", "tokenizers", "llguidance"):
        if importlib.util.find_spec(package) is None:
            raise SetupError(f'{package} is not installed: pip install "antiphon[{EXTRA}]"')


def _sees(folder: Path) -> bool:
    """Weights of a picture encoder, and how pictures are made ready for it."""
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, ValueError) as error:
        raise SetupError(f"{folder / 'config.json'} cannot be read: {error}") from None
    files = ("preprocessor_config.json", "processor_config.json")
    return "vision_config" in config and any((folder / name).is_file() for name in files)


def _eyes(folder: Path, tokenizer: Tokenizer) -> Eyes:
    require(EXTRA)
    try:
        return Eyes(folder, tokenizer)
    except Exception as error:
        raise SetupError(f"transformers cannot make images ready for {folder}: {error}") from None


def _model(
    folder: Path, device: str | None, threads: int | None, options: dict[str, Any], sees: bool
) -> Any:
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if threads:
        torch.set_num_threads(threads)
    if device is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        device = "cpu" if accelerator is None else accelerator.type
    # On CPUs without matrix units for it, bfloat16 is slower than float32 by far.
    options.setdefault("dtype", torch.float32 if device == "cpu" else "auto")
    try:
        kind = "AutoModelForImageTextToText" if sees else "AutoModelForCausalLM"
        model = getattr(transformers, kind).from_pretrained(
            folder, local_files_only=True, **options
        )
        return model.to(device).eval()
    except Exception as error:  # the library raises whatever its parts do
        raise SetupError(f"transformers cannot load {folder}: {first_line(error)}") from None


def _paged(model: Any, card: ModelCard, parallel: int, needed: bool) -> Paged | None:
    """None: this model's generations cannot share batches."""
    try:
        return Paged(model, card.context_size, parallel)
    except Exception as error:
        if needed:
            raise SetupError(f"transformers cannot batch {card.name}: {error}") from None
        return None


def _grammars(folder: Path, model: Any, tokenizer: Tokenizer) -> Grammars:
    size = int(model.config.get_text_config().vocab_size)
    return Grammars(folder / "tokenizer.json", size, sorted(tokenizer.end_ids))


class TransformersEngine:
    """``Engine`` over one model. Made by ``load``; belongs to the loop that uses it first."""

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        card: ModelCard,
        paged: Paged | None,
        grammars: Grammars,
        *,
        parallel: int,
        eyes: Eyes | None,
    ) -> None:
        self.tokenizer = tokenizer
        self.card = card
        self._paged = paged
        self._single = Single(model) if eyes or not paged else None
        self._eyes = eyes
        self._grammars = grammars
        # Paged caches hold so many; beyond, a request waits here, where it can be cancelled.
        self._places = asyncio.Semaphore(parallel)
        self._running: set[Generation] = set()
        self._closed = False
        self.capabilities = Capabilities(
            max_logprobs=MAX_LOGPROBS,
            constraints=True,
            images="template" if self._eyes is not None else None,
            cached_tokens=self._paged is not None,
            seed=True,
            logit_bias=True,
            penalties=True,
        )

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        grammar = self._checked(prompt, sampling)
        besides = sum([await self.image_tokens(image) for image in prompt.images])
        room = self.card.context_size - len(prompt.ids) - besides
        if room < 1:
            raise too_long(len(prompt.ids) + besides, self.card)
        async with self._places:
            if self._closed:
                raise BackendError("The engine is closed.")
            generation = self._generation(prompt, sampling, grammar, room)
            self._running.add(generation)
            leave = self._start(generation)
            try:
                async for chunk in generation.out:
                    yield chunk
            finally:
                self._running.discard(generation)
                leave()

    def _start(self, generation: Generation) -> Callable[[], None]:
        """Returns how to leave it."""
        if self._paged is not None and not generation.prompt.images:
            name, paged = self._paged.start(generation), self._paged
            return lambda: paged.leave(name)
        assert self._single is not None
        self._single.start(generation, self._eyes)
        return generation.abort

    async def image_tokens(self, image: Image) -> int:
        """``MeasuresImages``."""
        if self._eyes is None:
            raise cannot_see()
        return await asyncio.to_thread(self._eyes.tokens, image)

    def _generation(
        self, prompt: Prompt, sampling: Sampling, grammar: str | None, room: int
    ) -> Generation:
        sampler = Sampler(
            sampling,
            prompt.ids,
            defaults=self.card.generation,
            ends=self.tokenizer.end_ids,
            mask=None if grammar is None else self._grammars.mask(grammar),
        )
        endings = StopConditions(self.tokenizer, sampling, room)
        return Generation(prompt, sampler, endings, ThreadChannel(asyncio.get_running_loop()))

    def _checked(self, prompt: Prompt, sampling: Sampling) -> str | None:
        """The grammar, if there is one. Raises ``InvalidRequest``."""
        sees = self._eyes is not None
        check_request(prompt, sampling, self.card, self.tokenizer, sees=sees)
        return None if sampling.constraint is None else check_grammar(sampling.constraint, EXTRA)

    async def close(self) -> None:
        self._closed = True
        for generation in self._running:
            generation.fail(BackendError("The engine is closed."))
        for runner in (self._paged, self._single):
            if runner is not None:
                await asyncio.to_thread(runner.close)
        self._paged = self._single = None
