"""Build syntax trees for the numbers in a range. A tree matches the decimal notation of each number
in the range."""

from __future__ import annotations

from antiphon.dialects.grammar.syntax_tree import (
    Alternatives,
    CharSet,
    Concatenation,
    LiteralText,
    Node,
    Repeat,
    UnsupportedGrammar,
)

from .regexes import parse_regex

INTEGER = "-?(0|[1-9][0-9]*)"
#: The exponent has at most two digits, so every number is finite.
NUMBER = rf"{INTEGER}(\.[0-9]+)?([eE][+\-]?[0-9]{{1,2}})?"
#: The maximum number of digits of a bound.
_MAX_DIGITS = 30


def integers(low: int | None, high: int | None) -> Node:
    """Return a node that matches the integers from ``low`` to ``high``, both included. A bound of
    None means no limit.

    Raises ``UnsupportedGrammar`` if no integer is in the range.
    """
    arms: list[Node] = []
    if low is None or low < 0:  # for negative numbers, the two bounds change places
        arms.append(_negative(integers(max(1, -high) if high is not None else 1, _negate(low))))
    if high is None or high >= 0:
        arms += _by_digit_count(max(0, low or 0), high)
    return _choice(arms)


def numbers(
    low: int | None, high: int | None, *, exclude_low: bool = False, exclude_high: bool = False
) -> Node:
    """Return a node that matches the decimal numbers from ``low`` to ``high``. A bound of None
    means no limit.

    ``exclude_low``, ``exclude_high``: whether the bound itself is excluded. Raises
    ``UnsupportedGrammar`` if no number is in the range.
    """
    arms: list[Node] = []
    if low is None or low < 0:
        least = 0 if high is None or high > 0 else -high
        is_over = exclude_high if least else True  # exclude -0
        below = _magnitudes(least, _negate(low), is_over, exclude_low)
        arms += [_negative(below)] if below is not None else []
    if high is None or high >= 0:
        least = max(0, low or 0)
        is_over = exclude_low and low is not None and low >= 0
        above = _magnitudes(least, high, is_over, exclude_high)
        arms += [above] if above is not None else []
    return _choice(arms)


def _negate(bound: int | None) -> int | None:
    return None if bound is None else -bound


def _negative(node: Node) -> Node:
    return Concatenation((LiteralText("-"), node))


def _magnitudes(low: int, high: int | None, exclude_low: bool, exclude_high: bool) -> Node | None:
    """Return a node that matches the nonnegative decimal numbers in the range, or None if the range
    is empty."""
    arms: list[Node] = []
    first = low + 1 if exclude_low else low
    last = high - 1 if high is not None and exclude_high else high
    if last is None or first <= last:
        arms += _by_digit_count(first, last)
    if high is None or low < high:
        if exclude_low:  # the digits after the point must not be only zeros
            arms.append(
                Concatenation((LiteralText(f"{low}."), parse_regex("[0-9]{0,15}[1-9][0-9]{0,15}")))
            )
        if high is None or first <= high - 1:
            whole = _choice(_by_digit_count(first, None if high is None else high - 1))
            arms.append(Concatenation((whole, LiteralText("."), parse_regex("[0-9]+"))))
    return _choice(arms) if arms else None


def _by_digit_count(low: int, high: int | None) -> list[Node]:
    """Return nodes that match the nonnegative integers from ``low`` to ``high``.

    There is one node per number of digits. If ``high`` is None, one more node matches all numbers
    with more digits than ``low``.
    """
    if high is not None and high < low:
        return []
    digits = len(str(low if high is None else high))
    if digits > _MAX_DIGITS:
        raise UnsupportedGrammar("a bound has too many digits")
    arms = [
        _same_length_range(str(max(low, 10 ** (n - 1) if n > 1 else 0)), str(most))
        for n in range(len(str(low)), digits + 1)
        if (most := 10**n - 1 if high is None else min(high, 10**n - 1)) >= low
    ]
    if high is None:
        arms.append(Concatenation((parse_regex("[1-9]"), parse_regex(f"[0-9]{{{digits},}}"))))
    return arms


def _same_length_range(low: str, high: str) -> Node:
    """Return a node that matches the numbers from ``low`` to ``high``.

    ``low`` and ``high`` are strings of digits, of equal length. Every matched number has this
    length too.
    """
    if not low:
        return LiteralText("")
    rest = len(low) - 1
    if low[0] == high[0]:
        return Concatenation((LiteralText(low[0]), _same_length_range(low[1:], high[1:])))
    if set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}:
        return Concatenation((_digit(low[0], high[0]), _digits(rest)))
    arms: list[Node] = [
        Concatenation((LiteralText(low[0]), _same_length_range(low[1:], "9" * rest)))
    ]
    if ord(high[0]) - ord(low[0]) > 1:
        inner = _digit(chr(ord(low[0]) + 1), chr(ord(high[0]) - 1))
        arms.append(Concatenation((inner, _digits(rest))))
    return _choice(
        [*arms, Concatenation((LiteralText(high[0]), _same_length_range("0" * rest, high[1:])))]
    )


def _digit(first: str, last: str) -> Node:
    return CharSet(((ord(first), ord(last)),))


def _digits(count: int) -> Node:
    return Repeat(_digit("0", "9"), count, count)


def _choice(arms: list[Node]) -> Node:
    if not arms:
        raise UnsupportedGrammar("no number is within the bounds")
    return arms[0] if len(arms) == 1 else Alternatives(tuple(arms))
