"""Grammars as trees, whatever they were written in."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from .charsets import Ranges

__all__ = [
    "AnyText",
    "CharSet",
    "Choice",
    "Concatenation",
    "Node",
    "Repeat",
    "RuleRef",
    "Text",
    "Token",
    "UnsupportedGrammar",
    "walk",
]


class UnsupportedGrammar(Exception):
    """It is written in a way that is not known here, or cannot be said; the text says what."""


class Text(Struct, frozen=True):
    text: str


class CharSet(Struct, frozen=True):
    """One character of a set."""

    ranges: Ranges


class AnyText(Struct, frozen=True):
    """Any text with none of these in it. ``ends``: what ends it."""

    excluded: tuple[str, ...] = ()
    terminators: tuple[str, ...] = ()


class Token(Struct, frozen=True):
    """One control token."""

    id: int


class RuleRef(Struct, frozen=True):
    """What the rule of this name says."""

    name: str


class Concatenation(Struct, frozen=True):
    """One after the other."""

    parts: tuple[Node, ...]


class Choice(Struct, frozen=True):
    alternatives: tuple[Node, ...]


class Repeat(Struct, frozen=True):
    """``most``: None for any number."""

    node: Node
    minimum: int
    maximum: int | None


Node = Text | CharSet | AnyText | Token | RuleRef | Concatenation | Choice | Repeat


def walk(node: Node) -> Iterator[Node]:
    """The node and all in it; not what its rules say."""
    yield node
    match node:
        case Concatenation(inner) | Choice(inner):
            for each in inner:
                yield from walk(each)
        case Repeat(each):
            yield from walk(each)
