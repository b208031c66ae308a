"""A fake TensorRT-LLM with the toy model. It has the names, checks and streams of TensorRT-LLM.

It follows the LLM API of versions 1.2 and 1.3 (``LLM.generate_async``, ``SamplingParams``,
``RequestOutput``). A task fills the results. In TensorRT-LLM, threads of the executor do this.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import llguidance
import pytest

from tests.engines.toy import SIZE, TOKENIZER, Toy, reused


@dataclass(kw_only=True)
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass(kw_only=True)
class SamplingParams:
    end_id: int | None = None
    max_tokens: int = 32
    bad_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    logprobs: int | None = None
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True

    def __post_init__(self) -> None:
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError("require temperature > 0")

    @property
    def greedy(self) -> bool:
        given = (self.temperature, self.top_p, self.top_k)
        return given == (None, None, None) or self.top_k == 1


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass
class CompletionOutput:
    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    last: int = 0

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self.last :]

    @property
    def logprobs_diff(self) -> list[dict[int, Logprob]]:
        return self.logprobs[self.last :]


class RequestOutput:
    """The result of a request, which is also its stream. Each step adds tokens to the same
    object."""

    def __init__(self, llm: BaseLLM, toy: Toy, params: SamplingParams, cached: int) -> None:
        self.outputs = [CompletionOutput()]
        self.cached_tokens = cached
        self.finished = False
        self._llm, self._toy, self._params = llm, toy, params
        self._steps: asyncio.Queue[tuple[int, dict[int, float], str | None]] = asyncio.Queue(1)
        self._task = asyncio.create_task(self._work())
        llm.working.add(self._task)

    async def _work(self) -> None:
        params = self._params
        stops = set(params.stop_token_ids or ())
        reason = None
        while reason is None and not self._llm.down:
            token, known = self._toy.next(params.logprobs)
            if token in stops or (not params.ignore_eos and token in TOKENIZER.end_ids):
                reason = "stop"
            elif len(self._toy.new) >= params.max_tokens:
                reason = "length"
            await self._steps.put((token, known, reason))

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        token, known, reason = await self._steps.get()
        if self._llm.broken:
            raise RuntimeError("Executor worker returned error")
        output = self.outputs[0]
        output.last = len(output.token_ids)
        # A stop word is cut off again, unless it is asked for.
        if reason != "stop" or self._params.include_stop_str_in_output:
            output.token_ids.append(token)
            if self._params.logprobs is not None:
                output.logprobs.append({id: Logprob(value) for id, value in known.items()})
        output.finish_reason = reason
        self.finished = reason is not None
        return self

    def abort(self) -> None:
        self._llm.aborted += 1
        self._task.cancel()


class BaseLLM:
    def __init__(self, model: str, **arguments: Any) -> None:
        if arguments.get("tensor_parallel_size", 1) > 1:
            raise RuntimeError("Only 1 GPUs are available, but 2 are required.\nSee the log.")
        self.arguments = {"model": model, **arguments}
        self.requests: list[dict[str, Any]] = []
        self.working: set[asyncio.Task[None]] = set()
        self.aborted = 0
        self.down = self.broken = False
        self._cache: set[tuple[Any, ...]] = set()

    def _begin(
        self, inputs: list[int], params: SamplingParams, streaming: bool, **besides: Any
    ) -> RequestOutput:
        assert streaming and all(isinstance(id, int) for id in inputs)
        assert not params.detokenize
        if len(inputs) >= self.arguments["max_seq_len"]:
            raise ValueError("The prompt length should not exceed max_seq_len")
        self.requests.append({"ids": inputs, "params": params, **besides})
        grammar = None
        if params.guided_decoding is not None:
            assert self.arguments["guided_decoding_backend"] == "llguidance"
            grammar = llguidance.LLMatcher.grammar_from_lark(params.guided_decoding.grammar)
        bias = params.embedding_bias
        ends = TOKENIZER.end_ids if params.ignore_eos else ()
        toy = Toy(
            inputs,
            temperature=0 if params.greedy else params.temperature or 1.0,
            top_k=params.top_k or 0,
            top_p=1.0 if params.top_p is None else params.top_p,
            seed=params.seed or 0,
            bias=None if bias is None else dict(enumerate(bias)),
            presence=params.presence_penalty or 0.0,
            frequency=params.frequency_penalty or 0.0,
            forbidden=[*ends, *(params.bad_token_ids or ())],
            grammar=grammar,
        )
        return RequestOutput(
            self, toy, params, reused(self._cache, besides.get("cache_salt"), inputs)
        )

    def shutdown(self) -> None:
        self.down = True


class OldLLM(BaseLLM):
    """The LLM of an older version, without priorities and trace headers."""

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        streaming: bool = False,
    ) -> RequestOutput:
        assert sampling_params is not None
        return self._begin(inputs, sampling_params, streaming)


class LLM(BaseLLM):
    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        streaming: bool = False,
        trace_headers: Mapping[str, str] | None = None,
        cache_salt: str | None = None,
        priority: float = 0.5,
    ) -> RequestOutput:
        assert sampling_params is not None and 0 <= priority <= 1
        return self._begin(
            inputs,
            sampling_params,
            streaming,
            trace=trace_headers,
            cache_salt=cache_salt,
            priority=priority,
        )


class _Bias(list[float]):
    """A fake tensor with the few methods that the engine calls."""


def _zeros(size: int, dtype: Any) -> _Bias:
    assert size == SIZE and dtype == "float32"
    return _Bias([0.0] * size)


def install(patch: pytest.MonkeyPatch, llm: type[BaseLLM] = LLM) -> list[BaseLLM]:
    """Make imports of TensorRT-LLM and PyTorch return the fakes. Return the list to which each new
    fake is added."""
    made: list[BaseLLM] = []

    def make(model: str, **arguments: Any) -> BaseLLM:
        made.append(llm(model, **arguments))
        return made[-1]

    contents: dict[str, dict[str, Any]] = {
        "tensorrt_llm": {"LLM": make, "SamplingParams": SamplingParams},
        "tensorrt_llm.llmapi": {"GuidedDecodingParams": GuidedDecodingParams},
        "torch": {"zeros": _zeros, "float32": "float32"},
    }
    for name, content in contents.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__dict__.update(content)
        patch.setitem(sys.modules, name, module)
    return made
