"""Encode constraints for the kinds of server in the module ``servers``, and test whether a server
enforces them.

A constraint is a grammar or a JSON schema that the output must match. Servers report little about
their features and ignore unknown fields. So each syntax is tested with a probe: a request whose
constraint demands a text that the model would not write otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.engines.base import Capabilities, Engine, Sampling
from antiphon.engines.common.request_checks import check_constraint
from antiphon.engines.xgrammar.ebnf import EbnfConverter
from antiphon.errors import BackendError, InvalidRequest
from antiphon.inference.tokens import Constraint, Prompt, Tokenizer


class ConstraintSyntax(Struct, frozen=True):
    """One way to write a constraint in a request to a server.

    ``kind``: the language of the constraint, which is llguidance's Lark, xgrammar's EBNF, or JSON
    Schema. ``fields``: function that takes a constraint in that language and returns the request
    fields that contain it.
    """

    kind: Literal["lark", "ebnf", "schema"]
    fields: Callable[[Any], Mapping[str, Any]]


#: Prefix that makes servers read a grammar as llguidance's Lark.
_LLGUIDANCE_MARK = "%llguidance {}\n"

#: Kind of server → the syntaxes that it may accept, best first. A vLLM server with ``backend:
#: auto`` keeps the grammar backend that its first constrained request selects.
SYNTAXES: Mapping[str, Sequence[ConstraintSyntax]] = {
    "vllm": (
        ConstraintSyntax("ebnf", lambda value: {"structured_outputs": {"grammar": value}}),
        ConstraintSyntax("lark", lambda value: {"structured_outputs": {"grammar": value}}),
        ConstraintSyntax("schema", lambda value: {"structured_outputs": {"json": value}}),
    ),
    "sglang": (
        ConstraintSyntax("lark", lambda value: {"ebnf": value}),
        ConstraintSyntax("ebnf", lambda value: {"ebnf": value}),
        ConstraintSyntax(
            "schema", lambda value: {"json_schema": msgspec.json.encode(value).decode()}
        ),
    ),
    "tensorrt-llm": (
        ConstraintSyntax(
            "ebnf", lambda value: {"response_format": {"type": "ebnf", "ebnf": value}}
        ),
        ConstraintSyntax(
            "lark", lambda value: {"response_format": {"type": "ebnf", "ebnf": value}}
        ),
        ConstraintSyntax(
            "schema",
            lambda value: {
                "response_format": {"type": "json_schema", "json_schema": {"schema": value}}
            },
        ),
    ),
    "llama-server": (
        ConstraintSyntax("lark", lambda value: {"grammar": value}),
        ConstraintSyntax("schema", lambda value: {"json_schema": value}),
    ),
}


class ConstraintEncoder:
    """Encodes constraints in the syntax of one server.

    ``syntax``: the syntax, or None if the server enforces no constraints.
    """

    def __init__(self, syntax: ConstraintSyntax | None, tokenizer: Tokenizer) -> None:
        self._syntax = syntax
        self._ebnf = EbnfConverter(tokenizer)

    def capabilities(self, server: Capabilities) -> Capabilities:
        """Return all capabilities of the server, including the constraints that it enforces.

        ``server``: the capabilities of the server without constraints.
        """
        kind = None if self._syntax is None else self._syntax.kind
        return replace(
            server,
            constraints=kind == "lark",
            grammars=self._ebnf.accepts if kind == "ebnf" else None,
            schemas=kind == "schema",
        )

    def encode(self, sampling: Sampling) -> Mapping[str, Any]:
        """Return the fields of a request to the server that state the constraint of ``sampling``.

        Raises ``InvalidRequest`` if the server cannot enforce the constraint.
        """
        constraint, syntax = sampling.constraint, self._syntax
        if constraint is None:
            return {}
        value: Any = None
        match syntax and syntax.kind:
            case "lark":
                check_constraint(constraint)
                value = _LLGUIDANCE_MARK + constraint.lark
            case "ebnf":
                value = self._ebnf.convert(constraint.lark, sampling.stop_ids)
            case "schema":
                value = constraint.schema
        if syntax is None or value is None:
            raise InvalidRequest(
                "The grammar cannot be used: the upstream does not support it.",
                code="invalid_grammar",
            )
        return syntax.fields(value)


_PROBE_OUTPUT = '"qz"'
_PROBE_CONSTRAINT = Constraint('start: %json {"const": "qz"}', schema={"const": "qz"})
#: Maximum output of a probe in tokens, and the timeout of a probe in seconds.
_PROBE_TOKENS, _PROBE_TIMEOUT_S = 12, 60


async def probe_constraints(engine: Engine) -> bool:
    """Return whether the engine enforces constraints.

    Sends a probe: only an engine that enforces its constraint writes the expected output.
    """
    prompt = Prompt(tuple(engine.tokenizer.encode("a", special=False)))
    output = b""
    with suppress(BackendError, InvalidRequest, TimeoutError):
        sampling = Sampling(max_tokens=_PROBE_TOKENS, temperature=0, constraint=_PROBE_CONSTRAINT)
        chunks = engine.generate(prompt, sampling)
        async with asyncio.timeout(_PROBE_TIMEOUT_S), aclosing(chunks):
            async for chunk in chunks:
                output += b"".join(map(engine.tokenizer.piece, chunk.ids))
    return output.startswith(_PROBE_OUTPUT.encode())
