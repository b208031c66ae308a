"""Rendering and parsing are inverses: a call rendered by a row is parsed as the same call."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.formats.types import ToolFormat
from antiphon.dialects.parser.lexer import terminals_of
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.testing.tokenizer import ByteTokenizer
from tests.dialects.replies import (
    BARE,
    items,
    lexer_for,
    read,
    reply,
    schema,
    specials,
    thinking_of,
    tokenizer_for,
    write_calls,
)
from tests.hypothesis_settings import examples

SHAPES = {
    "store": ToolShape(
        wire_name="store",
        schema=schema(
            text={"type": "string"},
            count={"type": "integer"},
            ratio={"type": "number"},
            sure={"type": "boolean"},
            maybe={"anyOf": [{"type": "string"}, {"type": "null"}]},
            many={"type": "array"},
            deep={"type": "object"},
        ),
    ),
}

words = st.text(st.sampled_from("ab é😀\"'\\/\n\t0"), max_size=12)
plain_words = st.text(st.sampled_from("ab é😀x"), min_size=1, max_size=12).map(str.strip)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": words,
        "count": st.integers(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False, width=32),
        "sure": st.booleans(),
        "maybe": st.none() | plain_words.filter(bool),
        "many": st.lists(words | st.booleans() | st.none(), max_size=3),
        "deep": st.dictionaries(st.sampled_from(["a", "b c"]), words | st.integers(), max_size=2),
    },
)


texts = st.text(st.sampled_from("ab é😀\"'\\n<>[](){}|=:;,.`"), max_size=20).map(str.strip)
cuts = st.lists(st.integers(0, 10_000), max_size=3)
each_row = pytest.mark.parametrize("name", sorted(TOOLS))


def parser(name: str, *, special: bool) -> tuple[FormatParser, ByteTokenizer]:
    form, thinks = TOOLS[name], thinking_of(name)
    tokens = tuple(sorted({*specials(form), *thinks.open, *thinks.close})) if special else ()
    tokenizer = tokenizer_for(tokens)
    return FormatParser(
        tokenizer,
        reasoning=thinks,
        tools=form,
        shapes=SHAPES,
        thinking=False,
        lexer=lexer_for(tokens, thinks.name, name),
    ), tokenizer


def parse_reply(name: str, reply: str, at: list[int], *, special: bool) -> list[dict[str, Any]]:
    """Return the items of a reply cut at these positions, which equal those of single tokens."""
    reader, tokenizer = parser(name, special=special)
    ids = tokenizer.encode(reply, special=True)
    ends = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in at)})
    deltas = read(reader, (ids[a:b] for a, b in pairwise(ends)))
    assert deltas == read(parser(name, special=special)[0], ([token] for token in ids))
    parsed, is_open = items(deltas)
    assert not is_open
    return parsed


@pytest.mark.requirement("FM-ROWS")
@each_row
@examples(8, fuzz=300)
@given(
    special=st.booleans(),
    calls=st.lists(arguments, max_size=3),
    reasoning_done=texts,
    text=texts,
    at=cuts,
)
@example(special=False, calls=[{}], reasoning_done="", text="[", at=[])
@example(special=True, calls=[{}], reasoning_done="", text="{", at=[3])
@example(special=True, calls=[], reasoning_done="", text='<|"|>', at=[])
@example(special=True, calls=[{}], reasoning_done='<|"|>', text='b<|"|>', at=[])
def test_rendered_replies_are_parsed(
    name: str,
    special: bool,
    calls: list[dict[str, Any]],
    reasoning_done: str,
    text: str,
    at: list[int],
) -> None:
    form = TOOLS[name]
    special |= bool(form.begins)  # what the prompt has begun is told by tokens alone
    reasoning_done, text = (
        (reasoning_done if thinking_of(name).open else ""),
        ("" if name in BARE else text),
    )
    if special:  # outside of calls, tokens of the format are dropped
        reasoning_done, text = (without_tokens(form, each) for each in (reasoning_done, text))
    text = text.rstrip("> ") if form.doubtful else text  # which its next call begins with
    called = write_calls(form, [("store", call) for call in calls]) if calls else ""
    parsed = parse_reply(name, reply(form, reasoning_done, text, called), at, special=special)
    kinds = [{"reasoning": reasoning_done}] * bool(reasoning_done) + [{"message": text}] * bool(
        text
    )
    assert parsed[: len(kinds)] == kinds
    created = parsed[len(kinds) :]
    assert [item.get("call") for item in created] == ["store"] * len(calls)
    assert [json.loads(item["arguments"]) for item in created] == calls


def without_tokens(form: ToolFormat, text: str) -> str:
    for token in specials(form):
        text = text.replace(token, "")
    return text.strip()


@pytest.mark.parametrize("name", sorted(name for name, row in TOOLS.items() if row.quote))
def test_a_string_mark_outside_of_calls_is_dropped_if_it_is_a_token(name: str) -> None:
    mark = TOOLS[name].quote
    reply = f"say {mark}hi{mark}{mark}"
    assert parse_reply(name, reply, [], special=True) == [{"message": "say hi"}]
    assert parse_reply(name, mark, [], special=True) == []
    assert parse_reply(name, reply, [], special=False) == [{"message": reply}]


#: Where a format has room for what means nothing without a call, words there are for nobody.
ROOMY = frozenset(
    name for name, row in TOOLS.items() if {s.reads for s in row.states.values()} & {"filler", "id"}
)


@pytest.mark.requirement("FM-FUZZ")
@each_row
@examples(8, fuzz=300)
@given(special=st.booleans(), data=st.data(), at=cuts)
def test_no_word_among_markup_is_lost(
    name: str, special: bool, data: st.DataObject, at: list[int]
) -> None:
    """Whatever stands where: a word is part of some item."""
    terminals = sorted(terminals_of(thinking_of(name), TOOLS[name]))
    markup = st.lists(st.sampled_from([*terminals, "\n", " "]), max_size=3).map("".join)
    words = data.draw(st.lists(st.integers(0, 99).map("w{}q".format), max_size=4, unique=True))
    pieces = [data.draw(markup)]
    for word in words:
        pieces += [word, data.draw(markup)]
    parsed = json.dumps(parse_reply(name, "".join(pieces), at, special=special))
    if name not in ROOMY:
        assert [word for word in words if word not in parsed] == []
