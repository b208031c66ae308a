"""An engine that uses TensorRT-LLM in this process, through its class ``LLM``.

Token ids are passed in and out, so TensorRT-LLM's text processing is not used. TensorRT-LLM runs
its workers in other processes. It needs an NVIDIA GPU.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import secrets
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from antiphon.engines.base import DEFAULT_LOAD_OPTIONS, Capabilities, LoadOptions, Sampling
from antiphon.engines.common.async_requests import AsyncRequests, token_logprob
from antiphon.engines.common.request_checks import (
    check_constraint,
    check_request,
    sampling_values,
    stop_token_ids,
)
from antiphon.engines.common.stop_conditions import (
    EngineOutput,
    StopConditions,
    finish_reason,
)
from antiphon.errors import InvalidRequest, SetupError, first_line
from antiphon.inference.tokens import Chunk, ModelCard, Prompt, Tokenizer
from antiphon.support.installation import needs_extra

from .huggingface.model_folder import read_folder

EXTRA = "tensorrt-llm"
MAX_LOGPROBS = 20
#: Fields of TensorRT-LLM's ``SamplingParams`` that requests may set in ``Sampling.extra``.
_EXTRA_FIELDS = frozenset({"bad_token_ids", "min_tokens", "no_repeat_ngram_size"})


async def load(folder: Path, options: LoadOptions = DEFAULT_LOAD_OPTIONS) -> TensorrtEngine:
    """Load the model in ``folder``.

    ``options.context_size``: maximum tokens of a generation, prompt and output together. The size
    that the model was trained for is the default and the upper limit. ``options.engine_options``:
    arguments of TensorRT-LLM's class ``LLM``. They override the arguments that this function sets.

    Raises ``SetupError`` if TensorRT-LLM is not installed or cannot load the model.
    """
    if importlib.util.find_spec("tensorrt_llm") is None:
        raise SetupError(needs_extra("TensorRT-LLM is not installed", EXTRA))
    model_folder = await asyncio.to_thread(
        read_folder, folder, name=options.name, context_size=options.context_size
    )
    arguments: dict[str, Any] = {
        "model": str(folder),
        "max_seq_len": model_folder.card.context_size,
        "max_batch_size": options.parallel,
        "guided_decoding_backend": "llguidance",
        **options.engine_options,
    }
    llm = await asyncio.to_thread(_create_llm, folder, arguments)
    parallel = arguments["max_batch_size"]
    return TensorrtEngine(llm, model_folder.tokenizer, model_folder.card, parallel=parallel)


def _create_llm(folder: Path, arguments: Mapping[str, Any]) -> Any:
    import tensorrt_llm

    try:
        return tensorrt_llm.LLM(**arguments)
    except Exception as error:  # TensorRT-LLM raises many kinds of exceptions, with long messages
        raise SetupError(f"TensorRT-LLM cannot load {folder}: {first_line(error)}") from None


class TensorrtEngine:
    """``Engine`` that uses one TensorRT-LLM ``LLM``. ``load`` creates it. Use it on one event loop
    only.

    ``parallel``: maximum number of concurrent generations.
    """

    def __init__(self, llm: Any, tokenizer: Tokenizer, card: ModelCard, *, parallel: int) -> None:
        self._llm = llm
        self.tokenizer = tokenizer
        self.card = card
        self._requests = AsyncRequests(parallel)
        #: Arguments that the installed version supports. ``priority`` exists since version 1.3.
        self._supported_arguments = frozenset(inspect.signature(llm.generate_async).parameters)
        self.capabilities = Capabilities(
            max_logprobs=MAX_LOGPROBS,
            constraints=True,
            cached_tokens=True,
            seed=True,
            logit_bias=True,
            penalties=True,
            priority="priority" in self._supported_arguments,
            cache_salt="cache_salt" in self._supported_arguments,
            separates_caches="cache_salt" in self._supported_arguments,
            extra=_EXTRA_FIELDS,
        )

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        check_request(prompt, sampling, self.card, self.tokenizer)
        check_constraint(sampling.constraint)
        context_left = self.card.context_size - len(prompt.ids)
        stop_conditions = StopConditions(self.tokenizer, sampling, context_left)
        chunks = self._requests.chunks(
            self._outputs(prompt, sampling, context_left), stop_conditions, sampling
        )
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    async def _outputs(
        self, prompt: Prompt, sampling: Sampling, context_left: int
    ) -> AsyncGenerator[EngineOutput, None]:
        optional = {
            "cache_salt": sampling.prefix_salt,
            "trace_headers": dict(sampling.trace) or None,
            "priority": None if sampling.priority is None else _priority(sampling.priority),
        }
        try:
            result = self._llm.generate_async(
                list(prompt.ids),
                self._params(sampling, context_left),
                streaming=True,
                **{
                    name: value
                    for name, value in optional.items()
                    if value is not None and name in self._supported_arguments
                },
            )
        except ValueError as error:
            raise InvalidRequest(f"TensorRT-LLM rejects this request: {error}") from None
        try:
            first = True
            async for output in result:
                yield _engine_output(output, sampling.logprobs, first)
                first = False
        finally:
            if not result.finished:
                result.abort()

    def _params(self, sampling: Sampling, context_left: int) -> Any:
        from tensorrt_llm import SamplingParams
        from tensorrt_llm.llmapi import GuidedDecodingParams

        values = sampling_values(sampling, self.card)
        # TensorRT-LLM samples greedily if the temperature is not set, so always set it.
        if values.setdefault("temperature", 1.0) == 0:
            values = {**values, "top_k": 1, "top_p": 1.0}
            del values["temperature"]
        constraint = sampling.constraint
        return SamplingParams(
            **values,
            **sampling.extra,
            max_tokens=min(sampling.max_tokens, context_left),
            # TensorRT-LLM's default seed is the same for all requests.
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            stop_token_ids=stop_token_ids(sampling, self.tokenizer),
            include_stop_str_in_output=True,
            ignore_eos=sampling.ignore_eos,
            logprobs=None if sampling.logprobs is None else max(1, sampling.logprobs),
            embedding_bias=self._bias(sampling.logit_bias),
            guided_decoding=(
                None if constraint is None else GuidedDecodingParams(grammar=constraint.lark)
            ),
            detokenize=False,
        )

    def _bias(self, biases: Mapping[int, float]) -> Any:
        if not biases:
            return None
        import torch

        tensor = torch.zeros(self.tokenizer.size, dtype=torch.float32)
        for token, bias in biases.items():
            if 0 <= token < self.tokenizer.size:
                tensor[token] = bias
        return tensor

    async def close(self) -> None:
        await self._requests.close()
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)


def _priority(priority: int) -> float:
    """Convert a request's priority to TensorRT-LLM's priority.

    A request's priority is any integer, and lower values run first. TensorRT-LLM's priority is from
    0 to 1, and higher values run first.
    """
    return 0.5 - priority / (2 * (1 + abs(priority)))


def _engine_output(output: Any, top_count: int | None, first: bool) -> EngineOutput:
    completion = output.outputs[0]
    ids = completion.token_ids_diff
    logprobs = completion.logprobs_diff if top_count is not None else [None] * len(ids)
    return EngineOutput(
        [token_logprob(*each, top_count) for each in zip(ids, logprobs, strict=True)],
        finish_reason(completion.finish_reason),
        cached_tokens=output.cached_tokens if first else None,
    )
