"""In what words servers that continue token ids take constraints, and what a constraint is in them.

Which of the words a server takes is found out by asking it for something that its model would not
say: servers say little of themselves, and drop fields that they do not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.dialects.grammar.json_schema import grammar_fault
from antiphon.engines.base import Capabilities, Engine, Sampling
from antiphon.engines.xgrammar.ebnf import to_ebnf
from antiphon.errors import BackendError, InvalidRequest
from antiphon.tokens import Constraint, Prompt, Tokenizer

__all__ = ["SYNTAXES", "ConstraintEncoder", "ConstraintSyntax", "probe_constraints"]


class ConstraintSyntax(Struct, frozen=True):
    """``kind``: llguidance's Lark, xgrammar's EBNF, or a JSON schema. ``said``: what stands in a
    request for one of these."""

    kind: Literal["lark", "ebnf", "schema"]
    fields: Callable[[Any], Mapping[str, Any]]


#: Stands before Lark, so that no server takes it for a grammar of another kind.
_LLGUIDANCE_MARK = "%llguidance {}\n"

#: Server → its words, the best first. vLLM that may choose a backend by itself stays for good with
#: the one that its first request was for.
SYNTAXES: Mapping[str, Sequence[ConstraintSyntax]] = {
    "vllm": (
        ConstraintSyntax("ebnf", lambda said: {"structured_outputs": {"grammar": said}}),
        ConstraintSyntax("lark", lambda said: {"structured_outputs": {"grammar": said}}),
        ConstraintSyntax("schema", lambda said: {"structured_outputs": {"json": said}}),
    ),
    "sglang": (
        ConstraintSyntax("lark", lambda said: {"ebnf": said}),
        ConstraintSyntax("ebnf", lambda said: {"ebnf": said}),
        ConstraintSyntax(
            "schema", lambda said: {"json_schema": msgspec.json.encode(said).decode()}
        ),
    ),
    "tensorrt-llm": (
        ConstraintSyntax("ebnf", lambda said: {"response_format": {"type": "ebnf", "ebnf": said}}),
        ConstraintSyntax("lark", lambda said: {"response_format": {"type": "ebnf", "ebnf": said}}),
        ConstraintSyntax(
            "schema",
            lambda said: {
                "response_format": {"type": "json_schema", "json_schema": {"schema": said}}
            },
        ),
    ),
    "llama-server": (
        ConstraintSyntax("lark", lambda said: {"grammar": said}),
        ConstraintSyntax("schema", lambda said: {"json_schema": said}),
    ),
}


class ConstraintEncoder:
    """Constraints in one server's words, or in none."""

    def __init__(self, syntax: ConstraintSyntax | None, tokenizer: Tokenizer) -> None:
        self._syntax = syntax
        self._end_ids = tokenizer.end_ids
        self._literals = {id: literal for literal, id in tokenizer.special.items()}
        self._ebnf = lru_cache(maxsize=256)(self._convert_to_ebnf)

    def _convert_to_ebnf(self, lark: str, end_ids: frozenset[int]) -> str | None:
        return to_ebnf(lark, self._literals, end_ids)

    def capabilities(self, server: Capabilities) -> Capabilities:
        """What a server can that takes these words."""
        kind = None if self._syntax is None else self._syntax.kind
        return replace(
            server,
            constraints=kind == "lark",
            grammars=self._accepts_grammar if kind == "ebnf" else None,
            schemas=kind == "schema",
        )

    def _accepts_grammar(self, lark: str) -> bool:
        return self._ebnf(lark, self._end_ids) is not None

    def encode(self, sampling: Sampling) -> Mapping[str, Any]:
        """What stands in a request. Raises ``InvalidRequest`` for what the server does not take."""
        constraint, syntax = sampling.constraint, self._syntax
        if constraint is None:
            return {}
        fault: str | None = None
        value: Any = None
        match syntax and syntax.kind:
            case "lark":
                value, fault = _LLGUIDANCE_MARK + constraint.lark, grammar_fault(constraint.lark)
            case "ebnf":
                value = self._ebnf(constraint.lark, self._end_ids | {*sampling.stop_ids})
            case "schema":
                value = constraint.schema
        if syntax is None or value is None or fault is not None:
            reason = fault or "the upstream takes none like it."
            raise InvalidRequest(f"The grammar cannot be used: {reason}", code="invalid_grammar")
        return syntax.fields(value)


_PROBE_OUTPUT = '"qz"'
_PROBE_CONSTRAINT = Constraint('start: %json {"const": "qz"}', schema={"const": "qz"})
#: Tokens that are asked for, and seconds for them.
_PROBE_TOKENS, _PROBE_TIMEOUT_S = 12, 60


async def probe_constraints(engine: Engine) -> bool:
    """Whether the engine says a word because it is held to it."""
    prompt = Prompt(tuple(engine.tokenizer.encode("a", special=False)))
    output = b""
    with suppress(BackendError, InvalidRequest, TimeoutError):
        sampling = Sampling(max_tokens=_PROBE_TOKENS, temperature=0, constraint=_PROBE_CONSTRAINT)
        chunks = engine.generate(prompt, sampling)
        async with asyncio.timeout(_PROBE_TIMEOUT_S), aclosing(chunks):
            async for chunk in chunks:
                output += b"".join(map(engine.tokenizer.piece, chunk.ids))
    return output.startswith(_PROBE_OUTPUT.encode())
