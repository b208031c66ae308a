"""Check whether an engine supports the options and the constraint of a request.

A request with an unsupported option is rejected before the engine is called. The error names the
option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from antiphon.engines.base import Capabilities
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Options
from antiphon.inference.tokens import Constraint

_IMAGE_PROCESSOR_OPTION = "mm_processor_kwargs"
#: Option → function that returns whether an engine supports the option.
_SUPPORT: Mapping[str, Callable[[Capabilities], bool]] = {
    "presence_penalty": lambda capabilities: capabilities.penalties,
    "frequency_penalty": lambda capabilities: capabilities.penalties,
    "repetition_penalty": lambda capabilities: capabilities.penalties,
    "logit_bias": lambda capabilities: capabilities.logit_bias,
    "seed": lambda capabilities: capabilities.seed,
    "priority": lambda capabilities: capabilities.priority,
    "cache_salt": lambda capabilities: capabilities.cache_salt,
}


def check_options(options: Options, capabilities: Capabilities) -> None:
    """Raise ``InvalidRequest`` for an option that an engine with these capabilities does not
    support."""
    for option, is_supported in _SUPPORT.items():
        if options.requests(option) and not is_supported(capabilities):
            raise _unsupported(option, f"'{option}' is not supported with this model.")
    for name in options.extra:
        # this option is a separate request field, which exists only in requests with messages
        is_accepted = (
            name != _IMAGE_PROCESSOR_OPTION
            if capabilities.extra is None
            else name in capabilities.extra
        )
        if not is_accepted:
            field = extra_field(name)
            raise _unsupported(field, f"'{field}' is not supported with this model.")
    if options.logprobs is None:
        return
    if capabilities.max_logprobs is None:
        raise _unsupported("include", "log-probabilities are not supported with this model.")
    if options.logprobs > capabilities.max_logprobs:
        raise _unsupported(
            "top_logprobs",
            f"this model gives at most {capabilities.max_logprobs} alternatives a token.",
        )


def check_logit_bias(logit_bias: Mapping[int, float], vocabulary_size: int) -> None:
    """Raise ``InvalidRequest`` if ``logit_bias`` has a token id outside the vocabulary.
    ``vocabulary_size``: number of ids in the vocabulary."""
    for id in logit_bias:
        if id >= vocabulary_size:
            raise InvalidRequest(
                f"Invalid 'logit_bias': {id} is no token of this model (it has {vocabulary_size}).",
                param=f"logit_bias.{id}",
                code="invalid_value",
            )


def accepts_grammar(constraint: Constraint | None, capabilities: Capabilities) -> bool:
    """Return whether the engine can enforce the grammar of the constraint. Without a constraint,
    the result is True."""
    if constraint is None or capabilities.constraints:
        return True
    return capabilities.grammars is not None and capabilities.grammars(constraint.lark)


def enforces_schema(constraint: Constraint | None, capabilities: Capabilities) -> bool:
    """Return whether the engine can enforce the JSON schema of the constraint. Without a
    constraint, the result is True."""
    return constraint is None or (capabilities.schemas and constraint.schema is not None)


def extra_field(name: str) -> str:
    """Return the name of the request field that sets the key ``name`` of ``Options.extra``."""
    return name if name == _IMAGE_PROCESSOR_OPTION else f"vllm_xargs.{name[:64]}"


def _unsupported(param: str, reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported parameter: {reason}", param=param, code="unsupported_parameter"
    )
