"""A call of a function that the request did not offer is text, and so is everything in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.parser.parser import FormatParser
from tests.dialects.replies import (
    SHAPES,
    items,
    lexer_for,
    read,
    reply,
    specials,
    thinking_of,
    tokenizer_for,
    write_calls,
)

Call = tuple[str, Mapping[str, Any]]
KNOWN: Call = ("search", {"query": "x"})
#: Formats in which nothing but the name of a tool marks a call.
UNMARKED = frozenset(
    name for name, row in TOOLS.items() if (row.bare_state and not row.opens) or row.doubtful
)


def parse(name: str, calls: Sequence[Call], *, special: bool) -> list[dict[str, Any]]:
    """Return the items of a reply of calls, which are the same token by token."""
    form, thinks = TOOLS[name], thinking_of(name)
    tokens = tuple(sorted({*specials(form), *thinks.open, *thinks.close})) if special else ()
    tokenizer, lexer = tokenizer_for(tokens), lexer_for(tokens, thinks.name, name)

    def parser() -> FormatParser:
        return FormatParser(
            tokenizer, reasoning=thinks, tools=form, shapes=SHAPES, thinking=False, lexer=lexer
        )

    ids = tokenizer.encode(reply(form, "", "", write_calls(form, calls)), special=True)
    deltas = read(parser(), [ids])
    assert read(parser(), ([token] for token in ids)) == deltas
    return items(deltas)[0]


both = pytest.mark.parametrize("special", [True, False], ids=["tokens", "text"])


@pytest.mark.requirement("FM-ROWS")
@both
@pytest.mark.parametrize("name", sorted(TOOLS.keys() - UNMARKED | {"llm_jp"}))
def test_call_inside_a_call_of_an_unknown_function_is_text(name: str, special: bool) -> None:
    """The arguments of an unknown function may quote a call of a known one."""
    special |= bool(TOOLS[name].begins) or name in UNMARKED
    quoted = write_calls(TOOLS[name], [KNOWN])
    unknown: Call = ("format_disk", {"note": f"see\n{quoted} there", "n": 1})
    found = parse(name, [unknown], special=special)
    assert not any("call" in item for item in found)
    assert "format_disk" in found[0]["message"]


@pytest.mark.requirement("FM-ROWS")
@both
@pytest.mark.parametrize("name", sorted(TOOLS))
def test_unknown_call_does_not_hide_the_calls_around_it(name: str, special: bool) -> None:
    special |= bool(TOOLS[name].begins)
    unknown: Call = ("format_disk", {"disk": "a"})
    found = parse(name, [("now", {}), unknown, KNOWN], special=special)
    assert [item.get("call") for item in found] == ["now", None, "search"]
    assert json.loads(found[2]["arguments"]) == KNOWN[1]
    assert "format_disk" in found[1]["message"]
