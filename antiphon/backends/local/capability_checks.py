"""What not every engine can honour: options, refused by name before a run, and grammars."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from antiphon.conversation import Options
from antiphon.dialects.grammar.json_schema import keywords_of
from antiphon.engines.base import Capabilities
from antiphon.errors import InvalidRequest
from antiphon.tokens import Constraint

__all__ = ["accepts_grammar", "check_bias", "check_options", "enforces_schema", "field_of_extra"]


_FOR_IMAGES = "mm_processor_kwargs"
#: Option → whether an engine honours it.
_HONOURS: Mapping[str, Callable[[Capabilities], bool]] = {
    "presence_penalty": lambda can: can.penalties,
    "frequency_penalty": lambda can: can.penalties,
    "repetition_penalty": lambda can: can.penalties,
    "logit_bias": lambda can: can.logit_bias,
    "seed": lambda can: can.seed,
    "priority": lambda can: can.priority,
    "cache_salt": lambda can: can.cache_salt,
}


def check_options(options: Options, can: Capabilities) -> None:
    """Raises ``InvalidRequest`` for what an engine of these capabilities cannot honour."""
    for option, honours in _HONOURS.items():
        if options.requests(option) and not honours(can):
            raise _unsupported(option, f"'{option}' is not supported with this model.")
    for name in options.extra:
        # a field of its own, which goes beside images and messages alone
        taken = name != _FOR_IMAGES if can.extra is None else name in can.extra
        if not taken:
            field = field_of_extra(name)
            raise _unsupported(field, f"'{field}' is not supported with this model.")
    if options.logprobs is None:
        return
    if can.max_logprobs is None:
        raise _unsupported("include", "log-probabilities are not supported with this model.")
    if options.logprobs > can.max_logprobs:
        raise _unsupported(
            "top_logprobs", f"this model gives at most {can.max_logprobs} alternatives a token."
        )


def check_bias(bias: Mapping[int, float], size: int) -> None:
    """``size``: of the vocabulary. Raises ``InvalidRequest`` for what is no token of it."""
    for id in bias:
        if id >= size:
            raise InvalidRequest(
                f"Invalid 'logit_bias': this model has {size} tokens, and {id} is none of them.",
                param=f"logit_bias.{id}",
                code="invalid_value",
            )


def accepts_grammar(constraint: Constraint | None, can: Capabilities) -> bool:
    """Whether an engine of these capabilities takes the grammar itself."""
    if constraint is None or can.constraints:
        return True
    return can.grammars is not None and can.grammars(constraint.lark)


def enforces_schema(constraint: Constraint | None, can: Capabilities) -> bool:
    """Whether it holds a model to it by the schema alone."""
    if constraint is None:
        return True
    if not can.schemas or constraint.schema is None:
        return False
    known = can.schema_keywords
    return known is None or keywords_of(constraint.schema) <= known


def field_of_extra(name: str) -> str:
    """Where a request says what the engine alone knows by this name."""
    return name if name == _FOR_IMAGES else f"vllm_xargs.{name[:64]}"


def _unsupported(param: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported parameter: {why}", param=param, code="unsupported_parameter"
    )
