"""Build the engine's sampling options from a request, and read the sampling values that a model's
files recommend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.dialects.base import Rendered
from antiphon.engines.base import Sampling
from antiphon.inference.conversation import Options
from antiphon.inference.sampling import SamplingOptions

#: Name of a recommended value in model files (``general.sampling.*`` of GGUF, generation_config of
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


def recommended_options(generation: Mapping[str, object]) -> dict[str, Any]:
    """Return the sampling values that a model's files recommend, keyed by the field names of
    ``Options``. ``generation``: the same values, keyed by the names that the model's files use."""
    return {
        option: generation[name]
        for name, option in _RECOMMENDED.items()
        if generation.get(name) is not None
    }


def build_sampling(options: Options, rendered: Rendered, max_tokens: int) -> Sampling:
    """Return the engine's sampling options for a rendered prompt. ``max_tokens``: maximum number of
    tokens to sample."""
    shared = {name: getattr(options, name) for name in SamplingOptions.__struct_fields__}
    shared |= {"stop": (*rendered.stop, *options.stop), **_replace_boundary_values(options)}
    return Sampling(
        **shared,
        max_tokens=max_tokens,
        stop_ids=rendered.stop_ids,
        constraint=rendered.constraint,
        owner=None if options.session is None else options.session.owner,
        session_key=None if options.session is None else options.session.key,
    )


def _replace_boundary_values(options: Options) -> dict[str, Any]:
    """Replace extreme values of options by other values with the same effect, because some engines
    reject the extreme values. Return the new values of the options that change, by option name.

    These values are replaced: ``top_p=0`` and ``min_p=1``, which allow only the most likely token,
    and ``top_k=-1``, which allows all tokens, as in vLLM.
    """
    replaced: dict[str, Any] = {"top_k": 0} if options.top_k == -1 else {}
    if options.top_p == 0 or options.min_p == 1:
        replaced |= {"temperature": 0.0, "top_p": 1.0, "min_p": None}
    return replaced
