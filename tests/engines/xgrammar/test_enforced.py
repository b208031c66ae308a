"""What xgrammar makes of its EBNF: nothing comes of it that llguidance would not let a model write,
and all that a model should be able to write may come."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.dialects.formats.reasoning_formats import REASONING
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.grammar.builder import GrammarBuilder
from antiphon.dialects.tools import collect_tools
from antiphon.engines.xgrammar.ebnf import to_ebnf
from antiphon.inference.conversation import Options
from antiphon.inference.tokens import Constraint
from antiphon.testing.tokenizer import END, ByteTokenizer
from antiphon.wire.tools import Custom, Function, GrammarFormat
from tests.dialects.grammar.test_builder import ENDS
from tests.dialects.grammars import ConstrainedWriter
from tests.dialects.replies import specials, write_calls

xgrammar = pytest.importorskip("xgrammar")
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]

_SIGNS = tuple(b'",:{}[]<|>')


class Enforced:
    """A constraint as xgrammar enforces it. ``known``: whether it can be said in its words."""

    def __init__(self, tokenizer: ByteTokenizer, constraint: Constraint, end: str = END) -> None:
        literals = {id: literal for literal, id in tokenizer.special.items()}
        self._tokenizer = tokenizer
        self._end = tokenizer.special[end]
        found = to_ebnf(constraint.lark, literals, {self._end})
        self.known = found is not None
        vocabulary = [tokenizer.piece(id) for id in range(tokenizer.size)]
        described = xgrammar.TokenizerInfo(
            vocabulary,
            xgrammar.VocabType.RAW,
            vocab_size=tokenizer.size,
            stop_token_ids=[self._end],
        )
        compiler = xgrammar.GrammarCompiler(described, cache_enabled=False)
        self._grammar = compiler.compile_grammar(found or 'root ::= ""')

    def may_write(self, text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(self._grammar)
        ids = self._tokenizer.encode(text, special=True)
        return all(map(matcher.accept_token, ids)) and matcher.accept_token(self._end)

    def write_calls(self, dice: random.Random, most: int = 600) -> list[int] | None:
        """Something that it lets a model write; None if that has no end."""
        matcher, output = xgrammar.GrammarMatcher(self._grammar), []
        mask = xgrammar.allocate_token_bitmask(1, self._tokenizer.size)
        while len(output) < most:
            matcher.fill_next_token_bitmask(mask)
            words = mask[0].tolist()
            allowed = [id for id in range(self._tokenizer.size) if words[id // 32] >> id % 32 & 1]
            if self._end in allowed and dice.random() < 0.4:
                return output
            allowed = [id for id in allowed if id != self._end]
            if not allowed:
                return output
            special = [id for id in allowed if id >= 256]
            signs = [id for id in allowed if id in _SIGNS]
            letters = [id for id in allowed if 32 <= id < 127]
            kinds = [kind for kind in (special, signs, letters) if kind] or [allowed]
            output.append(dice.choice(dice.choice(kinds)))
            assert matcher.accept_token(output[-1])
        return None


def texts(enforced: Enforced, tokenizer: ByteTokenizer, count: int) -> Iterator[str]:
    for seed in range(count):
        if (ids := enforced.written(random.Random(seed))) is not None:
            yield b"".join(map(tokenizer.piece, ids)).decode("utf-8", "surrogateescape")


TRIP = Function(
    name="trip",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    strict=True,
)
PATCH = Custom(
    name="patch",
    format=GrammarFormat(syntax="lark", definition='start: "(" start ")" | /[a-z]{1,3}/'),
)
REQUESTS = {
    "free": {"tools": (TRIP,)},
    "forced": {"tools": (TRIP, PATCH), "tool_choice": "required"},
    "single": {"tools": (TRIP,), "parallel_tool_calls": False},
}


@pytest.mark.requirement("UP-XGRAMMAR")
@pytest.mark.parametrize("fields", REQUESTS)
@pytest.mark.parametrize("form", TOOLS)
def test_calls_are_held_as_llguidance_holds_them(form: str, fields: str) -> None:
    end = ENDS.get(form, END)
    tokenizer = ByteTokenizer(("<think>", "</think>", *sorted(specials(TOOLS[form])), end))
    options = Options(**REQUESTS[fields])
    maker = GrammarBuilder(tokenizer, TOOLS[form], REASONING["think"])
    constraint = maker.constraint(options, collect_tools(options, ()), False)
    assert constraint is not None
    enforced, reference = (
        Enforced(tokenizer, constraint, end),
        ConstrainedWriter(tokenizer, constraint, end),
    )
    if not enforced.known:
        # where nothing marks a call: what an answer may not begin with has no words
        assert "~/" in constraint.lark and fields != "forced"
        return
    reasoning_done = "<think>So.</think>\n\n"
    call = write_calls(TOOLS[form], [("trip", {"city": "O<s>lo", "days": 2})])
    assert enforced.may_write(call) and enforced.may_write(reasoning_done + call)
    assert enforced.may_write("Hello") is (fields != "forced")
    assert not enforced.may_write(write_calls(TOOLS[form], [("trip", {"city": "Oslo", "days": 0})]))
    for text in texts(enforced, tokenizer, 4):
        assert reference.may_write(text), text


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
NODE = _object(v=INTEGER, next={"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]})
SCHEMAS: list[tuple[Any, list[Any]]] = [
    ({}, [None, 1.5, "a", [1], {"a": {}}]),
    ({"type": ["string", "null"]}, ['a\n"\\<b>', None]),
    ({"type": "number"}, [0, -1.25, 1e20]),
    ({"type": "integer", "minimum": -7, "exclusiveMaximum": 120}, [-7, 0, 119]),
    ({"type": "number", "minimum": 0, "maximum": 1}, [0, 0.25, 1]),
    ({"type": "number", "exclusiveMinimum": 0}, [0.001, 12.5]),
    ({"enum": ["a", 1, None, {"x": [1, 2]}, 'q"z']}, ["a", 1, {"x": [1, 2]}]),
    ({"const": {"a": [1, "é"]}}, [{"a": [1, "é"]}]),
    ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", '"\\\n🦄']),
    ({"type": "string", "pattern": r"^[^a]{2}$"}, ['"\\', "bc"]),
    ({"type": "string", "pattern": r"^\d{3}-(x|y)*\S$"}, ["123-xyx?"]),
    ({"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3}, [[1], [1, 2, 3]]),
    ({"type": "array", "items": {}, "minItems": 2}, [[1, "a"]]),
    ({"type": "array", "prefixItems": [INTEGER, STRING], "items": False}, [[1, "a"]]),
    ({"type": "array", "prefixItems": [INTEGER], "items": STRING, "minItems": 2}, [[1, "a", "b"]]),
    ({"type": "array", "items": False}, [[]]),
    (_object(a=INTEGER, b=STRING), [{"a": 1, "b": ""}]),
    (
        {"type": "object", "properties": {"a": INTEGER, "b": STRING, "c": {}}, "required": ["b"]},
        [{"b": ""}, {"a": 1, "b": ""}, {"b": "", "c": 1}, {"a": 1, "b": "", "c": 1}],
    ),
    ({"type": "object", "properties": {"a": INTEGER, "b": STRING}}, [{}, {"a": 1}, {"b": ""}]),
    ({"type": "object", "additionalProperties": INTEGER}, [{}, {"x": 1, 'y"': 2}]),
    (_object(**{'a"b': INTEGER, "é\n": INTEGER}), [{'a"b': 1, "é\n": 2}]),
    ({"anyOf": [STRING, _object(x=INTEGER)]}, ["a", {"x": 1}]),
    (
        {
            "type": "object",
            "$ref": "#/$defs/a",
            "$defs": {"a": {"anyOf": [_object(x=INTEGER), STRING]}},
        },
        [{"x": 1}],
    ),
    ({"$ref": "#/$defs/n", "$defs": {"n": NODE}}, [{"v": 1, "next": {"v": 2, "next": None}}]),
    (_object(a=INTEGER, b={"anyOf": [{"$ref": "#"}, {"type": "null"}]}), [{"a": 1, "b": None}]),
    *(
        ({"type": "string", "format": name}, [right])
        for name, right in {
            "date": "2026-11-30",
            "time": "10:00:59Z",
            "date-time": "2026-02-28T10:00:59.5+01:00",
            "duration": "P3D",
            "email": "an.na@example.org",
            "hostname": "example.org",
            "ipv4": "192.0.2.1",
            "ipv6": "2001:db8::1",
            "uri": "https://example.org/a/b?c=d",
            "uuid": "123e4567-e89b-12d3-a456-426614174000",
        }.items()
    ),
]


@pytest.mark.requirement("UP-XGRAMMAR")
@pytest.mark.parametrize(("schema", "values"), SCHEMAS, ids=lambda value: json.dumps(value)[:50])
def test_schema_is_enforced(schema: Any, values: list[Any]) -> None:
    validator = pytest.importorskip("jsonschema_rs").validator_for(schema, validate_formats=True)
    tokenizer = ByteTokenizer(("<think>",))
    constraint = Constraint(f"start: %json {json.dumps(schema)} | <[256]>")
    enforced = Enforced(tokenizer, constraint)
    assert enforced.known
    for value in values:
        assert enforced.may_write(json.dumps(value, ensure_ascii=False)), value
    for text in texts(enforced, tokenizer, 12):
        if text != "<think>":
            assert validator.is_valid(json.loads(text)), text
