"""Output that a grammar allows is valid after parsing, in every format: the validator rejects
nothing that an engine enforces."""

from __future__ import annotations

import random
from typing import Any

import pytest

from antiphon.backends.validation.answer_format import enforced_answer_format
from antiphon.backends.validation.grammar_matcher import GrammarCache
from antiphon.backends.validation.monitor import StreamValidator
from antiphon.backends.validation.tool_calls import tool_call_rules
from antiphon.dialects.base import Parser
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.grammar.builder import GrammarBuilder
from antiphon.dialects.harmony import grammar as harmony_grammar
from antiphon.dialects.harmony import parser as harmony_parser
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.tools import collect_tools
from antiphon.inference.conversation import Options, ToolChoice
from antiphon.inference.tokens import Chunk, Constraint
from antiphon.stream.deltas import Finish
from antiphon.testing.tokenizer import END, ByteTokenizer
from antiphon.wire.response import JsonSchemaFormat, TextConfig, Usage
from antiphon.wire.tools import Custom, Function, GrammarFormat
from tests.dialects.grammar.test_builder import closed_object
from tests.dialects.grammars import ConstrainedWriter
from tests.dialects.replies import specials, thinking_of

TRIP = Function(
    name="trip",
    strict=True,
    parameters=closed_object(
        days={"enum": [1, 30]},
        by={"enum": ["air", 'a "car"']},
        stops={"type": "array", "items": {"type": "string"}},
        pays=closed_object(sum={"enum": [1.5, None]}),
    ),
)
ODD = Custom(name="odd", format=GrammarFormat(syntax="regex", definition='[ab<|>\n"]{1,9}'))
FORM = JsonSchemaFormat(name="n", schema=closed_object(s={"type": "string"}, n={"type": "boolean"}))
REQUESTS: dict[str, dict[str, Any]] = {
    "calls": {
        "tools": (TRIP,),
        "tool_choice": ToolChoice("required"),
        "parallel_tool_calls": False,
    },
    "custom calls": {"tools": (ODD,), "tool_choice": ToolChoice("required")},
    "an answer": {"text": TextConfig(format=FORM)},
}
GRAMMARS = GrammarCache()


async def fault(parser: Parser, ids: list[int], options: Options) -> str | None:
    shown = collect_tools(options, ())
    form, calls = (
        enforced_answer_format(options, GRAMMARS),
        await tool_call_rules(shown, GRAMMARS, is_enforced=True),
    )
    deltas = (*parser.feed(Chunk(tuple(ids))), *parser.finish("stop"), Finish("stop", Usage()))
    return await StreamValidator(form, calls, allows_text_with_calls=False).fault(deltas)


def drawn(
    tokenizer: ByteTokenizer, constraint: Constraint | None, seed: str, end: str = END
) -> list[int]:
    return ConstrainedWriter(tokenizer, constraint, end).written(random.Random(seed), 4_000)


@pytest.mark.requirement("API-STRICT", "API-CUSTOM-GRAMMAR")
@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("name", TOOLS)
async def test_constrained_output_is_valid(name: str, fields: dict[str, Any]) -> None:
    row, thinks, options = TOOLS[name], thinking_of(name), Options(**fields)
    shown = collect_tools(options, ())
    ends = (tag for tag in (*thinks.open, *thinks.close) if tag == tag.strip())
    tokenizer = ByteTokenizer(sorted(specials(row).union(ends)))
    constraint = GrammarBuilder(tokenizer, row, thinks).constraint(options, shown, False)
    parser = FormatParser(
        tokenizer, reasoning=thinks, tools=row, shapes=shown.shapes, thinking=False
    )
    ids = drawn(tokenizer, constraint, name)
    assert await fault(parser, ids, options) is None, b"".join(map(tokenizer.piece, ids))


@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS)
async def test_constrained_harmony_output_is_valid(fields: dict[str, Any]) -> None:
    tokenizer = ByteTokenizer(list(harmony_parser.CONTROL_TOKENS.values()))
    codes, options = harmony_parser.TokenCodes.from_tokenizer(tokenizer), Options(**fields)
    shown = collect_tools(options, ())
    constraint = harmony_grammar.HarmonyGrammar(tokenizer).constraint_for_reply(
        options, shown, None
    )
    for seed in range(5):
        parser = harmony_parser.HarmonyParser(
            tokenizer, codes, shapes=shown.shapes, constrained=True, json_answer="text" in fields
        )
        ids = drawn(tokenizer, constraint, f"harmony {seed}", end="<|return|>")
        assert await fault(parser, ids, options) is None, b"".join(map(tokenizer.piece, ids))
