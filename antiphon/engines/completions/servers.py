"""Differences between the kinds of server, such as vLLM, that ``CompletionsEngine`` can use. Every
kind takes the token ids of a prompt and returns the ids of the next tokens.

``FLAVOURS`` has one entry per kind of server: path, request body, parser and capabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.engines.base import Capabilities, Sampling
from antiphon.engines.common.request_checks import SAMPLING_FIELDS, requested_values
from antiphon.engines.llama.completion import completion_fields

from .stream_parser import (
    CompletionsStreamParser,
    LlamaParser,
    SglangParser,
    StreamRequest,
    VllmParser,
)

_MAX_LOGPROBS = 20


class CompletionsFlavour(Struct, frozen=True, kw_only=True):
    """One kind of server, such as vLLM: how it is called and what it supports.

    ``path``: the path of its completions endpoint. ``has_version_path``: whether the path is below
    ``/v1``. ``owner``: the value of ``owned_by`` in the server's model list, which identifies the
    kind of server. ``encode``: function that returns the body of a request. ``make_parser``:
    function that creates the parser for a request's response stream.
    ``usage_after_finish``: whether the server sends the token usage after the finish reason.
    ``has_adapters``: whether a request may name a LoRA adapter.
    """

    path: str
    owner: str
    capabilities: Capabilities
    encode: Callable[[StreamRequest], Mapping[str, Any]]
    make_parser: Callable[[StreamRequest], CompletionsStreamParser]
    has_version_path: bool = True
    usage_after_finish: bool = False
    has_adapters: bool = False


def _scheduling_fields(sampling: Sampling) -> dict[str, Any]:
    """Return vLLM's request fields for its queue and its prefix cache."""
    fields = {"priority": sampling.priority, "cache_salt": sampling.prefix_salt}
    return {name: value for name, value in fields.items() if value is not None}


def _bias(sampling: Sampling) -> dict[str, float]:
    return {str(id): bias for id, bias in sampling.logit_bias.items()}


def _sampling_params(sampling: Sampling) -> dict[str, Any]:
    params = {
        "max_tokens": sampling.max_tokens,
        **requested_values(sampling, (*SAMPLING_FIELDS, "seed")),
    }
    if sampling.stop_ids:
        params["stop_token_ids"] = sampling.stop_ids
    if sampling.logit_bias:
        params["logit_bias"] = _bias(sampling)
    if sampling.ignore_eos:
        params["ignore_eos"] = True
    return params


def _openai_body(request: StreamRequest) -> dict[str, Any]:
    return {
        "model": request.sampling.adapter or request.model,
        "prompt": request.prompt.ids,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampling_params(request.sampling),
    }


def _vllm_body(request: StreamRequest) -> Mapping[str, Any]:
    sampling = request.sampling
    body = _openai_body(request) | _scheduling_fields(sampling)
    body |= request.constraint_fields
    body["return_token_ids"] = True
    if sampling.logprobs is not None:
        body["logprobs"] = sampling.logprobs
        body["return_tokens_as_token_ids"] = True
    if sampling.extra:
        body["vllm_xargs"] = dict(sampling.extra)
    return body


def vllm_image_body(request: StreamRequest, urls: Sequence[str]) -> Mapping[str, Any]:
    """Return the body for vLLM's ``/inference/v1/generate``. ``urls``: the data URLs of the
    images."""
    sampling = request.sampling
    params = {**_sampling_params(sampling), **request.constraint_fields, "detokenize": False}
    if sampling.logprobs is not None:
        # vLLM counts the sampled token as one of the alternatives, so request one more.
        params["logprobs"] = min(sampling.logprobs + 1, _MAX_LOGPROBS) if sampling.logprobs else 0
    if sampling.extra:
        params["extra_args"] = dict(sampling.extra)
    return {
        "model": sampling.adapter or request.model,
        "token_ids": request.prompt.ids,
        "content_parts": [{"type": "image_url", "url": url} for url in urls],
        "sampling_params": params,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_scheduling_fields(sampling),
    }


def _tensorrt_body(request: StreamRequest) -> Mapping[str, Any]:
    # `detokenize: false` returns the ids instead of the text.
    return {**_openai_body(request), **request.constraint_fields, "detokenize": False}


#: Our field → SGLang's name for it.
_SGLANG_NAMES: Mapping[str, str] = {
    "max_tokens": "max_new_tokens",
    "seed": "sampling_seed",
    "adapter": "lora_path",
    "prefix_salt": "extra_key",
}


def _sglang_body(request: StreamRequest) -> Mapping[str, Any]:
    sampling = request.sampling
    params = {
        _SGLANG_NAMES.get(name, name): value for name, value in _sampling_params(sampling).items()
    }
    if params.get("top_k") == 0:
        params["top_k"] = -1  # no limit
    body: dict[str, Any] = {
        "input_ids": request.prompt.ids,
        "sampling_params": {**params, **request.constraint_fields, "skip_special_tokens": False},
        "stream": True,
    }
    body |= {
        _SGLANG_NAMES[n]: v
        for n, v in requested_values(sampling, ("adapter", "prefix_salt")).items()
    }
    if sampling.priority is not None:
        body["priority"] = -sampling.priority  # SGLang runs higher values first
    if sampling.logprobs is not None:
        body |= {"return_logprob": True, "top_logprobs_num": sampling.logprobs}
    return body


def sglang_image_body(request: StreamRequest, urls: Sequence[str]) -> Mapping[str, Any]:
    """Return the body for SGLang's ``/generate``. ``urls``: the data URLs of the images.

    If there are several images, the body has the field ``modalities``. Without this field, some
    models would see only the first image.
    """
    several = {"modalities": ["multi-images"]} if len(urls) > 1 else {}
    return {**_sglang_body(request), "image_data": urls, **several}


def _llama_body(request: StreamRequest) -> Mapping[str, Any]:
    return {
        **completion_fields(request.sampling),
        "prompt": request.prompt.ids,
        "cache_prompt": True,
        **request.constraint_fields,
    }


_COMMON_CAPABILITIES = Capabilities(
    max_logprobs=_MAX_LOGPROBS,
    cached_tokens=True,
    seed=True,
    logit_bias=True,
    penalties=True,
    may_refuse=True,
)

#: Sources: the servers' request models and documentation, November 2026.
FLAVOURS: Mapping[str, CompletionsFlavour] = {
    "vllm": CompletionsFlavour(
        path="completions",
        owner="vllm",
        capabilities=msgspec.structs.replace(
            _COMMON_CAPABILITIES,
            priority=True,
            cache_salt=True,
            separates_caches=True,
            extra=None,
        ),
        encode=_vllm_body,
        make_parser=VllmParser,
        has_adapters=True,
        usage_after_finish=True,
    ),
    "sglang": CompletionsFlavour(
        path="generate",
        owner="sglang",
        # SGLang honours seeds only with deterministic inference; see ``engine.load``.
        capabilities=msgspec.structs.replace(
            _COMMON_CAPABILITIES, seed=False, priority=True, cache_salt=True, separates_caches=True
        ),
        encode=_sglang_body,
        make_parser=SglangParser,
        has_adapters=True,
        has_version_path=False,
    ),
    "tensorrt-llm": CompletionsFlavour(
        path="completions",
        owner="tensorrt_llm",
        # The log-probabilities of TensorRT-LLM carry no token ids.
        capabilities=msgspec.structs.replace(_COMMON_CAPABILITIES, max_logprobs=None),
        encode=_tensorrt_body,
        make_parser=VllmParser,
        usage_after_finish=True,
    ),
    "llama-server": CompletionsFlavour(
        path="completion",
        owner="llamacpp",
        capabilities=_COMMON_CAPABILITIES,
        encode=_llama_body,
        make_parser=LlamaParser,
        has_version_path=False,
    ),
}
