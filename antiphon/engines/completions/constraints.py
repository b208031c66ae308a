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
from antiphon.engines.xgrammar.ebnf import ebnf
from antiphon.errors import BackendError, InvalidRequest
from antiphon.tokens import Constraint, Prompt, Tokenizer

__all__ = ["WORDS", "ConstraintEncoder", "ConstraintSyntax", "probe_constraints"]


class ConstraintSyntax(Struct, frozen=True):
    """``kind``: llguidance's Lark, xgrammar's EBNF, or a JSON schema. ``said``: what stands in a
    request for one of these."""

    kind: Literal["lark", "ebnf", "schema"]
    said: Callable[[Any], Mapping[str, Any]]


#: Stands before Lark, so that no server takes it for a grammar of another kind.
_HEAD = "%llguidance {}\n"

#: Server → its words, the best first. vLLM that may choose a backend by itself stays for good with
#: the one that its first request was for.
WORDS: Mapping[str, Sequence[ConstraintSyntax]] = {
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

    def __init__(self, words: ConstraintSyntax | None, tokenizer: Tokenizer) -> None:
        self._words = words
        self._ends = tokenizer.end_ids
        self._literals = {id: literal for literal, id in tokenizer.special.items()}
        self._ebnf = lru_cache(maxsize=256)(self._written)

    def _written(self, lark: str, ends: frozenset[int]) -> str | None:
        return ebnf(lark, self._literals, ends)

    def told(self, can: Capabilities) -> Capabilities:
        """What a server can that takes these words."""
        kind = None if self._words is None else self._words.kind
        return replace(
            can,
            constraints=kind == "lark",
            grammars=self._can_be_said if kind == "ebnf" else None,
            schemas=kind == "schema",
        )

    def _can_be_said(self, lark: str) -> bool:
        return self._ebnf(lark, self._ends) is not None

    def said(self, sampling: Sampling) -> Mapping[str, Any]:
        """What stands in a request. Raises ``InvalidRequest`` for what the server does not take."""
        constraint, words = sampling.constraint, self._words
        if constraint is None:
            return {}
        fault: str | None = None
        said: Any = None
        match words and words.kind:
            case "lark":
                said, fault = _HEAD + constraint.lark, grammar_fault(constraint.lark)
            case "ebnf":
                said = self._ebnf(constraint.lark, self._ends | {*sampling.stop_ids})
            case "schema":
                said = constraint.schema
        if words is None or said is None or fault is not None:
            why = fault or "the upstream takes none like it."
            raise InvalidRequest(f"The grammar cannot be used: {why}", code="invalid_grammar")
        return words.said(said)


_WORD = '"qz"'
_ASKED = Constraint('start: %json {"const": "qz"}', schema={"const": "qz"})
#: Tokens that are asked for, and seconds for them.
_TOKENS, _WAIT_S = 12, 60


async def probe_constraints(engine: Engine) -> bool:
    """Whether the engine says a word because it is held to it."""
    prompt = Prompt(tuple(engine.tokenizer.encode("a", special=False)))
    said = b""
    with suppress(BackendError, InvalidRequest, TimeoutError):
        held = Sampling(max_tokens=_TOKENS, temperature=0, constraint=_ASKED)
        chunks = engine.generate(prompt, held)
        async with asyncio.timeout(_WAIT_S), aclosing(chunks):
            async for chunk in chunks:
                said += b"".join(map(engine.tokenizer.piece, chunk.ids))
    return said.startswith(_WORD.encode())
