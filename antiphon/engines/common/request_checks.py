"""Functions that all engines share. They check a request against the model's limits, and return the
sampling values and the stop tokens for the generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.dialects.grammar.json_schema import short_grammar_fault
from antiphon.engines.base import Engine, Sampling
from antiphon.errors import CONTEXT_LENGTH_EXCEEDED, BackendError, InvalidRequest
from antiphon.inference.tokens import Constraint, ModelCard, Prompt, Tokenizer

__all__ = [
    "SAMPLING_FIELDS",
    "check_constraint",
    "check_request",
    "images_unsupported_error",
    "requested_values",
    "sampling_values",
    "stop_token_ids",
    "too_long_error",
]

#: The fields of ``Sampling`` that most engines and servers have under the same name.
SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


def check_request(engine: Engine, prompt: Prompt, sampling: Sampling) -> None:
    """Check a request against the limits and the capabilities of ``engine``.

    Raises ``InvalidRequest`` for an empty prompt, a prompt that fills the whole context, an output
    limit below one token, an unknown adapter, and images that the engine does not accept. Raises
    ``BackendError`` for ids outside the vocabulary.
    """
    card, capabilities = engine.card, engine.capabilities
    if not prompt.ids:
        raise InvalidRequest("The prompt is empty.", param="input")
    if sampling.max_tokens < 1:
        raise InvalidRequest("At least one output token is required.", param="max_output_tokens")
    if len(prompt.ids) >= card.context_size:
        raise too_long_error(len(prompt.ids), card)
    if prompt.images and capabilities.images is None:
        raise images_unsupported_error()
    if sampling.adapter is not None and sampling.adapter not in capabilities.adapters:
        raise InvalidRequest(f"There is no adapter {sampling.adapter!r}.", param="model")
    if min(prompt.ids) < 0 or max(prompt.ids) >= engine.tokenizer.size:
        raise BackendError("The prompt has token ids outside the model's vocabulary.")


def check_constraint(constraint: Constraint | None) -> None:
    """Raise ``InvalidRequest`` if the grammar of a constraint is unusable. Engines do not check it
    themselves: llama.cpp would silently ignore such a grammar."""
    if constraint is not None and (fault := short_grammar_fault(constraint.lark)) is not None:
        raise InvalidRequest(f"The grammar cannot be used: {fault}", code="invalid_grammar")


def images_unsupported_error() -> InvalidRequest:
    return InvalidRequest("This model cannot see images.", param="input")


def too_long_error(tokens: int, card: ModelCard) -> InvalidRequest:
    return InvalidRequest(
        f"The input has {tokens} tokens; the context of this model holds {card.context_size},"
        " including the output.",
        param="input",
        code=CONTEXT_LENGTH_EXCEEDED,
    )


def sampling_values(sampling: Sampling, card: ModelCard) -> dict[str, Any]:
    """Return the sampling values for a request, by field name.

    A value that the request does not set comes from the model's files. A value that is set in
    neither place is left out.
    """
    defaults = {name: card.generation.get(name) for name in SAMPLING_FIELDS}
    values = {**defaults, **requested_values(sampling)}
    return {name: value for name, value in values.items() if value is not None}


def requested_values(sampling: Sampling, names: Sequence[str] = SAMPLING_FIELDS) -> dict[str, Any]:
    """Return those of the fields ``names`` that the request sets, by name."""
    values = {name: getattr(sampling, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def stop_token_ids(sampling: Sampling, tokenizer: Tokenizer) -> list[int]:
    """Return the ids that end the generation, sorted."""
    ends = frozenset() if sampling.ignore_eos else tokenizer.end_ids
    return sorted({*sampling.stop_ids, *ends})
