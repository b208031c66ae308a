"""A fake vLLM with the toy model. It has the names, checks and streams of vLLM.

It follows ``AsyncLLM``, ``SamplingParams`` and ``outputs`` of vLLM 0.32. It rejects the same values
as vLLM. Parameters that vLLM ignores do not exist here.
"""

from __future__ import annotations

import asyncio
import enum
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import llguidance
import pytest

from tests.engines.toy import SIZE, TOKENIZER, Toy, reused


class VLLMValidationError(ValueError):
    pass


class EngineDeadError(Exception):
    pass


class RequestOutputKind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class StructuredOutputsParams:
    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""


@dataclass
class SamplingParams:
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None

    def __post_init__(self) -> None:
        self._require(self.temperature >= 0, "temperature must be non-negative")
        self._require(0 < self.top_p <= 1, f"top_p must be in (0, 1], got {self.top_p}.")
        self._require(self.top_k >= -1, "top_k must be 0 (disable), or at least 1")
        self._require(0 <= self.min_p <= 1, "min_p must be in [0, 1]")
        self._require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens must be >= 1")
        self._require(-2 <= self.presence_penalty <= 2, "presence_penalty must be in [-2, 2]")
        self._require(self.repetition_penalty > 0, "repetition_penalty must be greater than zero")
        self._require(self.detokenize or not self.stop, "stop strings need detokenize")

    def _require(self, true: bool, text: str) -> None:
        if not true:
            raise VLLMValidationError(text)


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class RequestOutput:
    request_id: str
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int | None = None


@dataclass
class AsyncEngineArgs:
    model: str
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_logprobs: int = 20
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    structured_outputs_config: dict[str, Any] = field(default_factory=dict)
    enable_log_requests: bool = False
    enable_lora: bool = False
    max_loras: int = 1
    tensor_parallel_size: int = 1
    limit_mm_per_prompt: dict[str, int] = field(default_factory=dict)


class ModelConfig:
    def __init__(self, max_model_len: int, sees: bool) -> None:
        self.max_model_len = max_model_len
        self.is_multimodal_model = sees


class Renderer:
    """Renders prompts like a processor of vLLM. For each image, the ids of the prompt (the
    placeholder of the image) are repeated twice more."""

    async def render_cmpl_async(
        self, prompts: list[dict[str, Any]], *, skip_mm_cache: bool = False
    ) -> list[dict[str, Any]]:
        assert skip_mm_cache, "what comes later would be looked for in a cache that has it not"
        created = []
        for prompt in prompts:
            ids = prompt["prompt_token_ids"]
            if not ids:
                raise VLLMValidationError("Expected there to be 1 prompt placeholders.")
            created.append({"prompt_token_ids": ids + 2 * len(prompt["multi_modal_data"]) * ids})
        return created


class AsyncLLM:
    """The fake engine. ``requests``: the keyword arguments of each request. ``aborted``: the ids of
    requests that were aborted."""

    def __init__(self, arguments: AsyncEngineArgs) -> None:
        self.arguments = arguments
        self.model_config = ModelConfig(
            arguments.max_model_len or 4096, sees=bool(arguments.limit_mm_per_prompt)
        )
        self.renderer = Renderer()
        self.requests: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.dead = self.down = False
        self._cache: set[tuple[Any, ...]] = set()

    @classmethod
    def from_engine_args(cls, engine_args: AsyncEngineArgs) -> AsyncLLM:
        if engine_args.tensor_parallel_size > 1:
            raise ValueError("World size (2) is larger than the number of GPUs.\nTry again.")
        return cls(engine_args)

    def shutdown(self, timeout: float | None = None) -> None:
        self.down = True

    async def generate(
        self,
        prompt: Mapping[str, Any],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        if self.dead:
            raise EngineDeadError("EngineCore encountered an issue.")
        self._check(prompt, sampling_params, lora_request, priority)
        self.requests.append(
            {"lora": lora_request, "trace": trace_headers, "priority": priority, **prompt}
        )
        toy = self._toy(prompt["prompt_token_ids"], sampling_params)
        cached = reused(self._cache, prompt.get("cache_salt"), toy.ids)
        try:
            async for output in self._outputs(request_id, toy, sampling_params, cached):
                yield output
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(request_id)
            raise

    def _check(
        self,
        prompt: Mapping[str, Any],
        params: SamplingParams,
        lora: LoRARequest | None,
        priority: int,
    ) -> None:
        ids = prompt["prompt_token_ids"]
        if len(ids) >= self.model_config.max_model_len or not ids:
            raise VLLMValidationError("The decoder prompt is longer than the model's length.")
        if max(ids) >= SIZE:
            raise VLLMValidationError(f"Token id {max(ids)} is out of vocabulary")
        if priority and self.arguments.scheduling_policy != "priority":
            raise VLLMValidationError("Got priority but priority scheduling is not enabled.")
        if lora is not None and not self.arguments.enable_lora:
            raise VLLMValidationError("Got lora_request but LoRA is not enabled!")
        if params.logprobs is not None and params.logprobs > self.arguments.max_logprobs:
            raise VLLMValidationError("Requested sample logprobs greater than max allowed")
        if params.structured_outputs and params.structured_outputs.grammar:
            assert self.arguments.structured_outputs_config["backend"] == "guidance"

    def _toy(self, ids: list[int], params: SamplingParams) -> Toy:
        grammar = None
        if params.structured_outputs is not None:
            grammar = llguidance.grammar_from("grammar", params.structured_outputs.grammar)
        ends = TOKENIZER.end_ids if params.ignore_eos else ()
        allowed = params.allowed_token_ids
        others = () if allowed is None else [id for id in range(SIZE) if id not in allowed]
        return Toy(
            ids,
            temperature=params.temperature,
            top_k=max(0, params.top_k),
            top_p=params.top_p,
            seed=params.seed,
            bias=params.logit_bias,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            forbidden=[*ends, *others],
            grammar=grammar,
        )

    async def _outputs(
        self, request_id: str, toy: Toy, params: SamplingParams, cached: int
    ) -> AsyncGenerator[RequestOutput, None]:
        assert params.output_kind is RequestOutputKind.DELTA
        stops = set(params.stop_token_ids or ())
        if not params.ignore_eos:
            stops |= TOKENIZER.end_ids
        reason = None
        while reason is None:
            await asyncio.sleep(0)
            if self.dead:
                raise EngineDeadError("EngineCore encountered an issue.")
            token, known = toy.next(params.logprobs)
            if token in stops:
                reason = "stop"
            elif len(toy.new) >= (params.max_tokens or self.model_config.max_model_len):
                reason = "length"
            result = {id: Logprob(value) for id, value in known.items()}
            output = CompletionOutput(
                index=0,
                text="",
                token_ids=[token],
                cumulative_logprob=None,
                logprobs=None if params.logprobs is None else [result],
                finish_reason=reason,
            )
            yield RequestOutput(request_id, [output], reason is not None, cached)


def install(patch: pytest.MonkeyPatch) -> list[AsyncLLM]:
    """Make imports of vLLM return the fake. Return the list to which each new fake is added."""
    made: list[AsyncLLM] = []

    class Recorded(AsyncLLM):
        def __init__(self, arguments: AsyncEngineArgs) -> None:
            super().__init__(arguments)
            made.append(self)

    contents: dict[str, dict[str, Any]] = {
        "vllm": {"SamplingParams": SamplingParams},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"AsyncEngineArgs": AsyncEngineArgs},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": LoRARequest},
        "vllm.sampling_params": {
            "RequestOutputKind": RequestOutputKind,
            "StructuredOutputsParams": StructuredOutputsParams,
        },
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.async_llm": {"AsyncLLM": Recorded},
    }
    for name, content in contents.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__dict__.update(content)
        patch.setitem(sys.modules, name, module)
    return made
