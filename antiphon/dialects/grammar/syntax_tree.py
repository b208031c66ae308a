"""The nodes of a grammar's syntax tree. The tree does not depend on the language of the grammar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from .charsets import Ranges


class UnsupportedGrammar(Exception):
    """Raised if a grammar uses an unsupported feature. The message names the feature."""


class LiteralText(Struct, frozen=True):
    text: str


class CharSet(Struct, frozen=True):
    """A node that matches one character of a set. ``ranges``: the set, as code point ranges."""

    ranges: Ranges


class AnyText(Struct, frozen=True):
    """A node that matches any text that contains none of the texts in ``excluded_texts`` and
    ``terminators``.

    ``terminators``: texts that may follow directly after the matched text. The matched text
    contains no terminator, so it ends before the first terminator.
    """

    excluded_texts: tuple[str, ...] = ()
    terminators: tuple[str, ...] = ()


class TokenNode(Struct, frozen=True):
    """A node that matches one control token. ``id``: the token id."""

    id: int


class RuleRef(Struct, frozen=True):
    """A reference to the rule ``name`` of the grammar."""

    name: str


class Concatenation(Struct, frozen=True):
    """A node that matches its parts one after the other."""

    parts: tuple[Node, ...]


class Alternatives(Struct, frozen=True):
    alternatives: tuple[Node, ...]


class Repeat(Struct, frozen=True):
    """A node that matches another node several times. ``maximum`` is None if there is no limit."""

    node: Node
    minimum: int
    maximum: int | None


Node = LiteralText | CharSet | AnyText | TokenNode | RuleRef | Concatenation | Alternatives | Repeat


#: Sign after a repeated part → the minimum and the maximum of the repetitions.
REPEAT_SIGNS: Mapping[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_SIGNS = {times: sign for sign, times in REPEAT_SIGNS.items()}


def repeat_sign(minimum: int, maximum: int | None) -> str:
    """Return what grammars and regexes write after a repeated part, such as ``*`` or ``{2,5}``."""
    many = f"{{{minimum},{'' if maximum is None else maximum}}}"
    return _SIGNS.get((minimum, maximum), many)


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and its descendants, without following rule references."""
    yield node
    match node:
        case Concatenation(inner) | Alternatives(inner):
            for each in inner:
                yield from walk(each)
        case Repeat(each):
            yield from walk(each)
