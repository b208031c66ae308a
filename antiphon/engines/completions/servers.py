"""How servers continue token ids over HTTP: what each is asked, and how its answer is read.

One row a server. It knows their fields, not how they are reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.engines.base import Capabilities, Sampling

from .stream_parser import (
    CompletionsStreamParser,
    LlamaPieces,
    SglangPieces,
    StreamRequest,
    TrtllmPieces,
    VllmPieces,
)

__all__ = ["FLAVOURS", "Flavour", "sglang_shown", "vllm_shown"]

_MOST_LOGPROBS = 20


class Flavour(Struct, frozen=True, kw_only=True):
    """``path``: where it continues tokens. ``versioned``: below ``/v1``. ``owner``: whom its list
    of models names. ``late``: how many tokens were cached is told behind the end. ``adapts``: it
    has adapters that a request names."""

    path: str
    owner: str
    can: Capabilities
    written: Callable[[StreamRequest], Mapping[str, Any]]
    pieces: Callable[[StreamRequest], CompletionsStreamParser]
    versioned: bool = True
    late: bool = False
    adapts: bool = False


#: Field of ``Sampling`` → field of most servers. None is left out: the server's own default.
_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)


def _given(sampling: Sampling, names: tuple[str, ...] = _SAME) -> dict[str, Any]:
    values = {name: getattr(sampling, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _bias(sampling: Sampling) -> dict[str, float]:
    return {str(id): bias for id, bias in sampling.logit_bias.items()}


def _sampled(sampling: Sampling) -> dict[str, Any]:
    params = {"max_tokens": sampling.max_tokens, **_given(sampling)}
    if sampling.stop_ids:
        params["stop_token_ids"] = sampling.stop_ids
    if sampling.logit_bias:
        params["logit_bias"] = _bias(sampling)
    if sampling.ignore_eos:
        params["ignore_eos"] = True
    return params


def _openai(asked: StreamRequest) -> dict[str, Any]:
    return {
        "model": asked.sampling.adapter or asked.model,
        "prompt": asked.prompt.ids,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampled(asked.sampling),
    }


def _vllm(asked: StreamRequest) -> Mapping[str, Any]:
    sampling = asked.sampling
    body = _openai(asked) | _given(sampling, ("priority", "cache_salt"))
    body |= asked.held
    body["return_token_ids"] = True
    if sampling.logprobs is not None:
        body["logprobs"] = sampling.logprobs
        body["return_tokens_as_token_ids"] = True
    if sampling.extra:
        body["vllm_xargs"] = dict(sampling.extra)
    return body


def vllm_shown(asked: StreamRequest, urls: Sequence[str]) -> Mapping[str, Any]:
    """What vLLM's ``/inference/v1/generate`` is asked for a prompt with images at these URLs."""
    sampling = asked.sampling
    params = {**_sampled(sampling), **asked.held, "detokenize": False}
    if sampling.logprobs is not None:
        # the one that was sampled is told first, and in the place of the last of the others
        params["logprobs"] = min(sampling.logprobs + 1, _MOST_LOGPROBS) if sampling.logprobs else 0
    if sampling.extra:
        params["extra_args"] = dict(sampling.extra)
    return {
        "model": sampling.adapter or asked.model,
        "token_ids": asked.prompt.ids,
        "content_parts": [{"type": "image_url", "url": url} for url in urls],
        "sampling_params": params,
        "stream": True,
        "stream_options": {"include_usage": True},
        **_given(sampling, ("priority", "cache_salt")),
    }


def _trtllm(asked: StreamRequest) -> Mapping[str, Any]:
    # gives the ids in place of the text
    return {**_openai(asked), **asked.held, "detokenize": False}


#: What SGLang calls otherwise.
_SGLANG: Mapping[str, str] = {
    "max_tokens": "max_new_tokens",
    "seed": "sampling_seed",
    "adapter": "lora_path",
    "cache_salt": "extra_key",
}


def _sglang(asked: StreamRequest) -> Mapping[str, Any]:
    sampling = asked.sampling
    params = {_SGLANG.get(name, name): value for name, value in _sampled(sampling).items()}
    if params.get("top_k") == 0:
        params["top_k"] = -1  # all of them
    body: dict[str, Any] = {
        "input_ids": asked.prompt.ids,
        "sampling_params": {**params, **asked.held, "skip_special_tokens": False},
        "stream": True,
    }
    body |= {_SGLANG[n]: v for n, v in _given(sampling, ("adapter", "cache_salt")).items()}
    if sampling.priority is not None:
        body["priority"] = -sampling.priority  # higher is sooner there
    if sampling.logprobs is not None:
        body |= {"return_logprob": True, "top_logprobs_num": sampling.logprobs}
    return body


def sglang_shown(asked: StreamRequest, urls: Sequence[str]) -> Mapping[str, Any]:
    """What SGLang is asked for a prompt with images at these URLs. Of several, some models would
    see the first alone if nothing told them."""
    several = {"modalities": ["multi-images"]} if len(urls) > 1 else {}
    return {**_sglang(asked), "image_data": urls, **several}


def _llama(asked: StreamRequest) -> Mapping[str, Any]:
    sampling = asked.sampling
    body: dict[str, Any] = {
        "prompt": asked.prompt.ids,
        "n_predict": sampling.max_tokens,
        "stream": True,
        "cache_prompt": True,
        "return_tokens": True,
        "return_progress": True,  # tells what was cached, before the first token
        **_given(sampling, tuple(name for name in _SAME if name != "repetition_penalty")),
    }
    if sampling.repetition_penalty is not None:
        body["repeat_penalty"] = sampling.repetition_penalty
    if sampling.seed is not None:
        body["seed"] = sampling.seed % 0xFFFFFFFF  # which would mean: any
    if sampling.logit_bias:
        body["logit_bias"] = list(sampling.logit_bias.items())
    if sampling.ignore_eos:
        body["ignore_eos"] = True
    if sampling.logprobs is not None:
        body["n_probs"] = max(1, sampling.logprobs)
    return {**body, **asked.held}


_ALL = Capabilities(
    max_logprobs=_MOST_LOGPROBS,
    cached_tokens=True,
    seed=True,
    logit_bias=True,
    penalties=True,
    may_refuse=True,
)

#: Sources: the servers' request models and documentation, November 2026.
FLAVOURS: Mapping[str, Flavour] = {
    "vllm": Flavour(
        path="completions",
        owner="vllm",
        can=msgspec.structs.replace(_ALL, priority=True, cache_salt=True, extra=None),
        written=_vllm,
        pieces=VllmPieces,
        adapts=True,
        late=True,
    ),
    "sglang": Flavour(
        path="generate",
        owner="sglang",
        # it has seeds where it says that it is deterministic
        can=msgspec.structs.replace(_ALL, seed=False, priority=True, cache_salt=True),
        written=_sglang,
        pieces=SglangPieces,
        adapts=True,
        versioned=False,
    ),
    "tensorrt-llm": Flavour(
        path="completions",
        owner="tensorrt_llm",
        # its log-probabilities name no ids
        can=msgspec.structs.replace(_ALL, max_logprobs=None),
        written=_trtllm,
        pieces=TrtllmPieces,
        late=True,
    ),
    "llama-server": Flavour(
        path="completion",
        owner="llamacpp",
        can=_ALL,
        written=_llama,
        pieces=LlamaPieces,
        versioned=False,
    ),
}
