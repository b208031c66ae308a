"""Numbers within bounds as trees of their digits. It knows no schema."""

from __future__ import annotations

from .ast import Chars, Choice, Node, Row, Text, Times, Unreadable
from .regexes import regex

__all__ = ["INTEGER", "NUMBER", "integers", "numbers"]

INTEGER = "-?(0|[1-9][0-9]*)"
#: None that would be without end.
NUMBER = rf"{INTEGER}(\.[0-9]+)?([eE][+\-]?[0-9]{{1,2}})?"
#: Digits of a bound, at most.
_LONGEST = 30


def integers(low: int | None, high: int | None) -> Node:
    """All from ``low`` to ``high``; None: without a bound. Raises ``Unreadable`` for none."""
    arms: list[Node] = []
    if low is None or low < 0:  # below zero all is the other way round
        arms.append(_below_zero(integers(max(1, -high) if high is not None else 1, _minus(low))))
    if high is None or high >= 0:
        arms += _counted(max(0, low or 0), high)
    return _choice(arms)


def numbers(low: int | None, high: int | None, *, over: bool = False, under: bool = False) -> Node:
    """All between these with any places; ``over``, ``under``: and without the bound itself."""
    arms: list[Node] = []
    if low is None or low < 0:
        least = 0 if high is None or high > 0 else -high
        is_over = under if least else True  # there is no zero below zero
        below = _magnitudes(least, _minus(low), is_over, over)
        arms += [_below_zero(below)] if below is not None else []
    if high is None or high >= 0:
        least = max(0, low or 0)
        is_over = over and low is not None and low >= 0
        above = _magnitudes(least, high, is_over, under)
        arms += [above] if above is not None else []
    return _choice(arms)


def _minus(bound: int | None) -> int | None:
    return None if bound is None else -bound


def _below_zero(node: Node) -> Node:
    return Row((Text("-"), node))


def _magnitudes(least: int, most: int | None, over: bool, under: bool) -> Node | None:
    """Decimals from zero on: what has places lies between two whole numbers."""
    arms: list[Node] = []
    first = least + 1 if over else least
    last = most - 1 if most is not None and under else most
    if last is None or first <= last:
        arms += _counted(first, last)
    if most is None or least < most:
        if over:  # not the bound with noughts behind it
            arms.append(Row((Text(f"{least}."), regex("[0-9]{0,15}[1-9][0-9]{0,15}"))))
        if most is None or first <= most - 1:
            whole = _choice(_counted(first, None if most is None else most - 1))
            arms.append(Row((whole, Text("."), regex("[0-9]+"))))
    return _choice(arms) if arms else None


def _counted(low: int, high: int | None) -> list[Node]:
    """Whole numbers from zero on, by how many digits they have."""
    if high is not None and high < low:
        return []
    digits = len(str(low if high is None else high))
    if digits > _LONGEST:
        raise Unreadable("a bound of too many digits")
    arms = [
        _between(str(max(low, 10 ** (n - 1) if n > 1 else 0)), str(most))
        for n in range(len(str(low)), digits + 1)
        if (most := 10**n - 1 if high is None else min(high, 10**n - 1)) >= low
    ]
    if high is None:
        arms.append(Row((regex("[1-9]"), regex(f"[0-9]{{{digits},}}"))))
    return arms


def _between(low: str, high: str) -> Node:
    """Digits as many as both have."""
    if not low:
        return Text("")
    rest = len(low) - 1
    if low[0] == high[0]:
        return Row((Text(low[0]), _between(low[1:], high[1:])))
    if set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}:
        return Row((_digit(low[0], high[0]), _digits(rest)))
    arms: list[Node] = [Row((Text(low[0]), _between(low[1:], "9" * rest)))]
    if ord(high[0]) - ord(low[0]) > 1:
        inner = _digit(chr(ord(low[0]) + 1), chr(ord(high[0]) - 1))
        arms.append(Row((inner, _digits(rest))))
    return _choice([*arms, Row((Text(high[0]), _between("0" * rest, high[1:])))])


def _digit(first: str, last: str) -> Node:
    return Chars(((ord(first), ord(last)),))


def _digits(count: int) -> Node:
    return Times(_digit("0", "9"), count, count)


def _choice(arms: list[Node]) -> Node:
    if not arms:
        raise Unreadable("there is no such number")
    return arms[0] if len(arms) == 1 else Choice(tuple(arms))
