"""Run one generation at a time with transformers' own ``generate``, which works for every kind of
model.

This is used for prompts with images, and for models without a paged KV cache. Antiphon's sampler
chooses each token and masks the logits of all other tokens. So ``generate`` can only take the
chosen token.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from antiphon.inference.tokens import Prompt

from .generation import Generation
from .images import ImageProcessor


class SequentialRunner:
    """Runs generations one after another in one thread. They must not alternate, because some
    models keep the state of a generation between the steps. ``context_size``: maximum number of
    tokens of a prompt and its output."""

    def __init__(self, model: Any, context_size: int) -> None:
        from transformers import GenerationConfig

        self._model = model
        self._context_size = context_size
        # The sampler applies the model's recommended values; `generate` must not apply them again.
        model.generation_config = GenerationConfig()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="transformers")

    def start(self, generation: Generation, image_processor: ImageProcessor | None) -> None:
        """Start a generation. Call this on the event loop. ``image_processor`` is used only for
        prompts with images."""
        self._threads.submit(self._run, generation, image_processor)

    def _run(self, generation: Generation, image_processor: ImageProcessor | None) -> None:
        if generation.finished:
            return
        try:
            self._generate(generation, image_processor)
        except Exception as error:  # otherwise, the client would wait for the next token forever
            generation.fail(error)

    def _generate(self, generation: Generation, image_processor: ImageProcessor | None) -> None:
        import torch
        from transformers import GenerationConfig

        def choose(ids: Any, scores: Any) -> Any:
            chosen = torch.full_like(scores, float("-inf"))
            chosen[0, generation.choose(scores[0])] = 0.0
            return chosen

        def is_finished(ids: Any, scores: Any, **_: Any) -> Any:
            return torch.full((1,), generation.finished, device=ids.device, dtype=torch.bool)

        config = GenerationConfig(
            do_sample=False, max_length=self._context_size, eos_token_id=None, pad_token_id=0
        )
        inputs = self._inputs(generation.prompt, image_processor)
        # Without a mask `generate` takes tokens with the id 0 for padding.
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        with torch.no_grad():
            self._model.generate(
                **inputs,
                generation_config=config,
                logits_processor=[choose],
                stopping_criteria=[is_finished],
            )

    def _inputs(self, prompt: Prompt, image_processor: ImageProcessor | None) -> dict[str, Any]:
        import torch

        model = self._model
        if image_processor is None or not prompt.images:
            return {"input_ids": torch.tensor([prompt.ids], device=model.device)}
        return {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in image_processor.inputs(prompt).items()
        }

    def close(self) -> None:
        """Stop the runner. Block until its thread has ended. The caller must abort the running
        generations before this call."""
        with contextlib.suppress(RuntimeError):
            self._threads.shutdown(wait=True, cancel_futures=True)
