"""Numbers within bounds, held against counting."""

from __future__ import annotations

import re

import pytest

from antiphon.dialects.grammar.syntax_tree import (
    Alternatives,
    CharSet,
    Concatenation,
    LiteralText,
    Node,
    Repeat,
    UnsupportedGrammar,
)
from antiphon.engines.xgrammar.numbers import integers, numbers

BOUNDS = (None, -1000, -120, -99, -7, -1, 0, 1, 3, 9, 10, 99, 105, 1000)
INTEGERS = range(-1300, 1301)
DECIMALS = [
    f"{sign}{whole}{places}"
    for sign in ("", "-")
    for whole in (0, 1, 2, 6, 7, 8, 9, 10, 98, 99, 100)
    for places in ("", ".0", ".5", ".00", ".999")
]


def pattern(node: Node) -> str:
    """The tree as a regex of Python's."""
    match node:
        case LiteralText(text):
            return re.escape(text)
        case CharSet(ranges):
            return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges) + "]"
        case Concatenation(parts):
            return f"(?:{''.join(map(pattern, parts))})"
        case Alternatives(arms):
            return f"(?:{'|'.join(map(pattern, arms))})"
        case Repeat(inner, least, most):
            return f"(?:{pattern(inner)}){{{least},{'' if most is None else most}}}"
    raise AssertionError(node)


@pytest.mark.parametrize("low", BOUNDS)
def test_integers_are_those_between(low: int | None) -> None:
    for high in BOUNDS:
        right = [n for n in INTEGERS if (low is None or n >= low) and (high is None or n <= high)]
        if low is not None and high is not None and low > high:
            with pytest.raises(UnsupportedGrammar):
                integers(low, high)
            continue
        written = re.compile(pattern(integers(low, high)))
        assert [n for n in INTEGERS if written.fullmatch(str(n))] == right, (low, high)
        assert not any(map(written.fullmatch, ("-0", "007", "-", "")))


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("under", [False, True])
def test_numbers_are_those_between(over: bool, under: bool) -> None:
    for low in (None, -10, -7, 0, 1, 9):
        for high in (None, -7, 0, 1, 10, 99):
            if low is not None and high is not None and low >= high:
                continue
            node = numbers(low, high, exclude_low=over and low is not None, exclude_high=under)
            written = re.compile(pattern(node))
            for text in DECIMALS:
                value = float(text)
                above = low is None or (value > low if over else value >= low)
                below = high is None or (value < high if under else value <= high)
                is_in, is_written = above and below, bool(written.fullmatch(text))
                assert is_in or not is_written, (low, high, text)
                # noughts behind a bound and below zero are another way to say the same
                assert is_written or not is_in or value == int(value), (low, high, text)


def test_bounds_with_too_many_digits_are_refused() -> None:
    with pytest.raises(UnsupportedGrammar):
        integers(0, 10**40)
