"""Encode constraints for servers that continue token ids, and probe what a server enforces.

Servers report little about their features and ignore unknown fields. So each syntax is probed: a
probe demands a text that the model would not write without the constraint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.dialects.grammar.json_schema import grammar_fault
from antiphon.engines.base import Capabilities, Engine, Sampling
from antiphon.engines.xgrammar.ebnf import EbnfConverter
from antiphon.errors import BackendError, InvalidRequest
from antiphon.tokens import Constraint, Prompt, Tokenizer

__all__ = ["SYNTAXES", "ConstraintEncoder", "ConstraintSyntax", "probe_constraints"]


class ConstraintSyntax(Struct, frozen=True):
    """One syntax for a constraint in a server's request.

    ``kind``: the language of the constraint, which is llguidance's Lark, xgrammar's EBNF, or JSON
    Schema. ``fields``: returns the request fields for a constraint in that language.
    """

    kind: Literal["lark", "ebnf", "schema"]
    fields: Callable[[Any], Mapping[str, Any]]


#: Prefix that makes servers read a grammar as llguidance's Lark.
_LLGUIDANCE_MARK = "%llguidance {}\n"

#: Server → the syntaxes it may accept, best first. A vLLM server with ``backend: auto`` keeps the
#: grammar backend that its first constrained request selects.
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
    """Encodes constraints in one server's syntax. ``syntax``: None if the server enforces none."""

    def __init__(self, syntax: ConstraintSyntax | None, tokenizer: Tokenizer) -> None:
        self._syntax = syntax
        self._ebnf = EbnfConverter(tokenizer)

    def capabilities(self, server: Capabilities) -> Capabilities:
        """Return ``server`` with the constraint capabilities of this syntax."""
        kind = None if self._syntax is None else self._syntax.kind
        return replace(
            server,
            constraints=kind == "lark",
            grammars=self._ebnf.accepts if kind == "ebnf" else None,
            schemas=kind == "schema",
        )

    def encode(self, sampling: Sampling) -> Mapping[str, Any]:
        """Return the request fields for the constraint of ``sampling``.

        Raises ``InvalidRequest`` when the server cannot enforce it.
        """
        constraint, syntax = sampling.constraint, self._syntax
        if constraint is None:
            return {}
        fault: str | None = None
        value: Any = None
        match syntax and syntax.kind:
            case "lark":
                value, fault = _LLGUIDANCE_MARK + constraint.lark, grammar_fault(constraint.lark)
            case "ebnf":
                value = self._ebnf.convert(constraint.lark, sampling.stop_ids)
            case "schema":
                value = constraint.schema
        if syntax is None or value is None or fault is not None:
            reason = fault or "the upstream does not support it."
            raise InvalidRequest(f"The grammar cannot be used: {reason}", code="invalid_grammar")
        return syntax.fields(value)

    def enforced_grammar(self, constraint: Constraint) -> str:
        """Return the grammar that the server enforces for the constraint in this syntax, as a Lark
        grammar."""
        if self._syntax is not None and self._syntax.kind == "schema":
            return f"start: %json {msgspec.json.encode(constraint.schema).decode()}"
        return constraint.lark


_PROBE_OUTPUT = '"qz"'
_PROBE_CONSTRAINT = Constraint('start: %json {"const": "qz"}', schema={"const": "qz"})
#: Length of the probe's output in tokens, and its timeout in seconds.
_PROBE_TOKENS, _PROBE_TIMEOUT_S = 12, 60


async def probe_constraints(engine: Engine) -> bool:
    """Return whether the engine enforces constraints.

    The engine writes the expected output of the probe only if it enforces the probe's constraint.
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
