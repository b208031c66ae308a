"""The syntax tree of a grammar, independent of its notation."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from .charsets import Ranges

__all__ = [
    "Alternatives",
    "AnyText",
    "CharSet",
    "Concatenation",
    "LiteralText",
    "Node",
    "Repeat",
    "RuleRef",
    "Token",
    "UnsupportedGrammar",
    "walk",
]


class UnsupportedGrammar(Exception):
    """The grammar uses an unsupported feature, which the message names."""


class LiteralText(Struct, frozen=True):
    text: str


class CharSet(Struct, frozen=True):
    """One character of a set."""

    ranges: Ranges


class AnyText(Struct, frozen=True):
    """Any text that contains none of the texts in ``excluded`` and ``terminators``.

    ``terminators``: texts that end this text.
    """

    excluded: tuple[str, ...] = ()
    terminators: tuple[str, ...] = ()


class Token(Struct, frozen=True):
    """One control token."""

    id: int


class RuleRef(Struct, frozen=True):
    """A reference to a rule."""

    name: str


class Concatenation(Struct, frozen=True):
    """Nodes in sequence."""

    parts: tuple[Node, ...]


class Alternatives(Struct, frozen=True):
    alternatives: tuple[Node, ...]


class Repeat(Struct, frozen=True):
    """A repeated node. ``maximum`` is None if the count has no limit."""

    node: Node
    minimum: int
    maximum: int | None


Node = LiteralText | CharSet | AnyText | Token | RuleRef | Concatenation | Alternatives | Repeat


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and its descendants, without following rule references."""
    yield node
    match node:
        case Concatenation(inner) | Alternatives(inner):
            for each in inner:
                yield from walk(each)
        case Repeat(each):
            yield from walk(each)
