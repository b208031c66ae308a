"""How an engine is to continue, of what a request asks and what its model's files recommend.

It knows no engine and no conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.conversation import Options
from antiphon.dialects.base import Rendered
from antiphon.engines.base import Sampling
from antiphon.sampling import SamplingOptions

__all__ = ["recommended_options", "sampling_of"]

#: What model files call a recommended value (``general.sampling.*`` of GGUF, generation_config of
#: Hugging Face) → the option.
_RECOMMENDED: Mapping[str, str] = {
    "temp": "temperature",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "repetition_penalty": "repetition_penalty",
}


def recommended_options(generation: Mapping[str, Any]) -> dict[str, Any]:
    """What a model's files recommend, by the names of ``Options``."""
    return {
        option: generation[name]
        for name, option in _RECOMMENDED.items()
        if generation.get(name) is not None
    }


def sampling_of(options: Options, rendered: Rendered, most: int) -> Sampling:
    """``most``: tokens."""
    shared = {name: getattr(options, name) for name in SamplingOptions.__struct_fields__}
    shared |= {"stop": (*rendered.stop, *options.stop), **_narrow(options)}
    return Sampling(
        **shared,
        max_tokens=most,
        stop_ids=rendered.stop_ids,
        constraint=rendered.constraint,
    )


def _narrow(options: Options) -> dict[str, Any]:
    """Values at the end of their range, which not every engine takes, by others that mean the
    same: of one token alone the likeliest is left, and -1 is vLLM's word for all of them."""
    said: dict[str, Any] = {"top_k": 0} if options.top_k == -1 else {}
    if options.top_p == 0 or options.min_p == 1:
        said |= {"temperature": 0.0, "top_p": 1.0, "min_p": None}
    return said
