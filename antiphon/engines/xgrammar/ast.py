"""Grammars as trees, whatever they were written in."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from .charsets import Ranges

__all__ = [
    "Anything",
    "Chars",
    "Choice",
    "Node",
    "Row",
    "Rule",
    "Text",
    "Times",
    "Token",
    "Unreadable",
    "within",
]


class Unreadable(Exception):
    """It is written in a way that is not known here, or cannot be said; the text says what."""


class Text(Struct, frozen=True):
    text: str


class Chars(Struct, frozen=True):
    """One character of a set."""

    ranges: Ranges


class Anything(Struct, frozen=True):
    """Any text with none of these in it. ``ends``: what ends it."""

    without: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


class Token(Struct, frozen=True):
    """One control token."""

    id: int


class Rule(Struct, frozen=True):
    """What the rule of this name says."""

    name: str


class Row(Struct, frozen=True):
    """One after the other."""

    parts: tuple[Node, ...]


class Choice(Struct, frozen=True):
    arms: tuple[Node, ...]


class Times(Struct, frozen=True):
    """``most``: None for any number."""

    node: Node
    least: int
    most: int | None


Node = Text | Chars | Anything | Token | Rule | Row | Choice | Times


def within(node: Node) -> Iterator[Node]:
    """The node and all in it; not what its rules say."""
    yield node
    match node:
        case Row(inner) | Choice(inner):
            for each in inner:
                yield from within(each)
        case Times(each):
            yield from within(each)
