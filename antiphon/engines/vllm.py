"""An engine that uses vLLM in this process, through vLLM's class ``AsyncLLM``.

Token ids are passed in and out, so vLLM's text processing is not used. vLLM runs its workers in
other processes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from antiphon.engines.base import DEFAULT_LOAD_OPTIONS, Capabilities, LoadOptions, Sampling
from antiphon.engines.common.image_token_cache import ImageTokenCache
from antiphon.engines.common.logprobs import finite, top_alternatives
from antiphon.engines.common.pillow_images import open_images
from antiphon.engines.common.request_checks import (
    check_constraint,
    check_request,
    images_unsupported_error,
    sampling_values,
    stop_token_ids,
    too_long_error,
)
from antiphon.engines.common.stop_conditions import (
    EngineOutput,
    StopConditions,
    finish_reason,
)
from antiphon.engines.common.thread_channel import ChunkChannel
from antiphon.errors import BackendError, InvalidRequest, SetupError, first_line
from antiphon.inference.tokens import (
    Chunk,
    EncodedImage,
    ModelCard,
    Prompt,
    Tokenizer,
    TokenLogprob,
)
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.installation import require_package
from antiphon.support.tasks import BackgroundTasks

from .huggingface.model_folder import read_folder

EXTRA = "vllm"
MAX_LOGPROBS = 20
#: Fields of vLLM's ``SamplingParams`` that requests may set in ``Sampling.extra``.
_EXTRA_FIELDS = frozenset({"allowed_token_ids", "bad_words", "min_tokens"})


async def load(folder: Path, options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> VllmEngine:
    """Load the model in ``folder``.

    ``options.context_size``: maximum number of tokens of one generation, prompt and output
    together. The default is the size that vLLM derives from the model's configuration.
    ``options.adapters``: name of a LoRA adapter → its folder. ``options.engine_options``: arguments
    of vLLM's engine. They override the arguments that this function sets.

    Raises ``SetupError`` if vLLM is not installed or cannot load the model.
    """
    require_package("vllm", "vLLM", EXTRA)
    model_folder = await asyncio.to_thread(
        read_folder, folder, name=options.name, context_size=options.context_size
    )
    adapters = options.adapters
    arguments: dict[str, Any] = {
        "model": str(folder),
        "max_model_len": options.context_size,
        "max_num_seqs": options.parallel,
        "max_logprobs": MAX_LOGPROBS,
        "enable_prefix_caching": True,
        # Requests of the same priority keep their order.
        "scheduling_policy": "priority",
        "structured_outputs_config": {"backend": "guidance"},
        "enable_log_requests": False,
        **({"enable_lora": True, "max_loras": len(adapters)} if adapters else {}),
        **options.engine_options,
    }
    engine = await asyncio.to_thread(_create_engine, folder, arguments)
    card = model_folder.card
    size = getattr(engine.model_config, "max_model_len", None) or card.context_size
    card = replace(card, context_size=min(size, card.context_size))
    return VllmEngine(
        engine, model_folder.tokenizer, card, adapters, parallel=arguments["max_num_seqs"]
    )


def _create_engine(folder: Path, arguments: Mapping[str, Any]) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    try:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    except Exception as error:  # vLLM raises many kinds of exceptions, with long messages
        raise SetupError(f"vLLM cannot load {folder}: {first_line(error)}") from None


class VllmEngine:
    """``Engine`` that uses one ``AsyncLLM`` of vLLM. ``load`` creates it. Use it on one event loop
    only.

    ``adapters``: name of a LoRA adapter → its folder. ``parallel``: maximum number of concurrent
    generations.
    """

    def __init__(
        self,
        engine: Any,
        tokenizer: Tokenizer,
        card: ModelCard,
        adapters: Mapping[str, str],
        *,
        parallel: int,
    ) -> None:
        self._engine = engine
        self.tokenizer = tokenizer
        self.card = card
        self._adapters = {
            name: (number, path) for number, (name, path) in enumerate(adapters.items(), 1)
        }
        self._accepts_images = bool(getattr(engine.model_config, "is_multimodal_model", False))
        self._image_token_cache = ImageTokenCache()
        self._request_numbers = itertools.count()
        self._slots = FairLimiter(parallel)
        #: The channels of the running generations, and the tasks that write to them.
        self._running: set[ChunkChannel] = set()
        self._tasks = BackgroundTasks("request of an engine")
        self._closed = False
        self.capabilities = Capabilities(
            max_logprobs=MAX_LOGPROBS,
            constraints=True,
            images="template" if self._accepts_images else None,
            cached_tokens=True,
            seed=True,
            logit_bias=True,
            penalties=True,
            priority=True,
            cache_salt=True,
            separates_caches=True,
            adapters=frozenset(self._adapters),
            extra=_EXTRA_FIELDS,
        )

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        check_request(self, prompt, sampling)
        check_constraint(sampling.constraint)
        image_tokens = sum([await self.image_tokens(image) for image in prompt.images])
        context_left = self.card.context_size - len(prompt.ids) - image_tokens
        if context_left < 1:
            raise too_long_error(len(prompt.ids) + image_tokens, self.card)
        stop_conditions = StopConditions(self.tokenizer, sampling, context_left)
        # Waiting tenants take turns. The requests of one tenant are ordered by priority.
        async with self._slots.slot(sampling.tenant, priority=sampling.priority or 0):
            if self._closed:
                raise BackendError("The engine is closed.")
            channel = ChunkChannel()
            outputs = self._outputs(prompt, sampling, context_left)
            task = self._tasks.start(_read(outputs, stop_conditions, channel))
            self._running.add(channel)
            try:
                async for chunk in channel:
                    yield chunk
            finally:
                self._running.discard(channel)
                task.cancel()
                await asyncio.wait([task])

    async def _outputs(
        self, prompt: Prompt, sampling: Sampling, context_left: int
    ) -> AsyncGenerator[EngineOutput, None]:
        vllm_prompt: dict[str, Any] = {"prompt_token_ids": list(prompt.ids)}
        if prompt.images:
            # vLLM finds the image placeholders in the ids and expands them.
            images = await asyncio.to_thread(open_images, prompt.images)
            vllm_prompt["multi_modal_data"] = {"image": images}
        if sampling.prefix_salt is not None:
            vllm_prompt["cache_salt"] = sampling.prefix_salt
        try:
            outputs = self._engine.generate(
                vllm_prompt,
                self._params(sampling, context_left),
                f"antiphon-{next(self._request_numbers)}",
                lora_request=self._adapter(sampling.adapter),
                trace_headers=dict(sampling.trace) or None,
                priority=sampling.priority or 0,
            )
            async with aclosing(outputs):  # aborts an unfinished request
                async for output in outputs:
                    yield _engine_output(output, sampling.logprobs)
        except ValueError as error:  # vLLM's validation errors
            raise _rejection(error) from None

    async def image_tokens(self, image: EncodedImage) -> int:
        """Return how many tokens of the context the image takes. vLLM's own prompt processor
        measures the image. See ``ImageMeasurer``."""
        if not self._accepts_images:
            raise images_unsupported_error()
        return await self._image_token_cache.get_or_measure(image, self._measure_image)

    async def _measure_image(self, image: EncodedImage) -> int:
        pictures = await asyncio.to_thread(open_images, [image])
        vllm_prompt = {
            "prompt_token_ids": [*image.placeholder_ids],
            "multi_modal_data": {"image": pictures},
        }
        try:
            # Skip vLLM's cache in this process. It does not send cached images to the workers, so
            # the workers would not have this image for a later request.
            (rendered,) = await self._engine.renderer.render_cmpl_async(
                [vllm_prompt], skip_mm_cache=True
            )
        except ValueError as error:
            raise _rejection(error) from None
        return len(rendered["prompt_token_ids"]) - len(image.placeholder_ids)

    def _params(self, sampling: Sampling, context_left: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        values = sampling_values(sampling, self.card)
        constraint = sampling.constraint
        return SamplingParams(
            **values,
            **sampling.extra,
            max_tokens=min(sampling.max_tokens, context_left),
            seed=sampling.seed,
            stop_token_ids=stop_token_ids(sampling, self.tokenizer),
            ignore_eos=sampling.ignore_eos,
            logprobs=sampling.logprobs,
            logit_bias=dict(sampling.logit_bias) or None,
            structured_outputs=(
                None if constraint is None else StructuredOutputsParams(grammar=constraint.lark)
            ),
            # Antiphon detokenizes the output and matches stop strings.
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def _adapter(self, name: str | None) -> Any:
        if name is None:
            return None
        from vllm.lora.request import LoRARequest

        number, path = self._adapters[name]
        return LoRARequest(name, number, path)

    async def close(self) -> None:
        self._closed = True
        for channel in self._running:
            channel.send(BackendError("The engine is closed."))
        await self._tasks.close()
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.shutdown)


def _rejection(error: ValueError) -> InvalidRequest:
    return InvalidRequest(f"vLLM rejects this request: {error}")


def _engine_output(output: Any, top_count: int | None) -> EngineOutput:
    completion = output.outputs[0]
    logprobs = completion.logprobs or [None] * len(completion.token_ids)
    return EngineOutput(
        [
            token_logprob(*each, top_count)
            for each in zip(completion.token_ids, logprobs, strict=True)
        ],
        finish_reason(completion.finish_reason),
        cached_tokens=output.num_cached_tokens,
    )


async def _read(
    outputs: AsyncGenerator[EngineOutput, None],
    stop_conditions: StopConditions,
    channel: ChunkChannel,
) -> None:
    """Send the chunks of a generation until it ends. Closing ``outputs`` aborts the request."""
    try:
        async with aclosing(outputs):
            async for output in outputs:
                if output.cached_tokens is not None:
                    channel.send(Chunk(cached_tokens=output.cached_tokens))
                if (chunk := stop_conditions.take(output)) is not None:
                    channel.send(chunk)
                if stop_conditions.finished:
                    return
        channel.send(BackendError("The engine stopped without a finish reason."))
    except Exception as error:
        channel.fail(error)


def token_logprob(
    id: int, candidates: Mapping[int, Any] | None, top_count: int | None
) -> TokenLogprob:
    """Convert the log-probabilities that vLLM reports for one sampled token.

    ``candidates``: the likeliest ids and the sampled id, each mapped to an object with a
    ``logprob``. If the request asks for no log-probabilities, ``candidates`` is None, and the
    result has the log-probability 0. ``top_count``: the requested number of alternatives.
    """
    if candidates is None:
        return TokenLogprob(id, 0.0)
    others = ((other, each.logprob) for other, each in candidates.items())
    return TokenLogprob(id, finite(candidates[id].logprob), top_alternatives(others, top_count))
