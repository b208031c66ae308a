"""Writing and reading are inverses: what a row says a call looks like is read as that call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.formats import TOOLS
from antiphon.dialects.scanner import Parser, ToolShape
from antiphon.testing.tokenizer import ByteTokenizer
from tests.dialects.replies import items, read, schema, written
from tests.searching import examples

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


@pytest.mark.requirement("FM-ROWS")
@pytest.mark.parametrize("special", [True, False], ids=["special", "spelled"])
@pytest.mark.parametrize("name", sorted(TOOLS))
@examples(10, fuzz=200)
@given(calls=st.lists(arguments, min_size=1, max_size=3))
def test_what_is_written_is_read(name: str, special: bool, calls: list[dict[str, Any]]) -> None:
    form = TOOLS[name]
    tokenizer = ByteTokenizer([t for t in form.opens if len(t) > 1] if special else [])
    reader = Parser(tokenizer, reasoning=None, tools=form, shapes=SHAPES, thinking=False)
    ids = tokenizer.encode(written(form, [("store", call) for call in calls]), special=True)
    found, is_open = items(read(reader, ([token] for token in ids)))
    assert [item.get("call") for item in found] == ["store"] * len(calls)
    assert [json.loads(item["arguments"]) for item in found] == calls
    assert not is_open
