"""The words of a grammar in llguidance's Lark: rules with names, and texts with control tokens.

It knows no format and no schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

__all__ = ["ANYTHING", "LarkRules", "TokenLiterals", "pattern"]

ANYTHING = "/(?s:.*)/"
#: What stands in a format for something that is known only as it is written.
_BLANK = re.compile(r"(\{(?:n|n\+1|id|name|key|type|line)\})")
_OPEN: Mapping[str, str] = {
    "{n}": "/[0-9]{1,3}/",
    "{n+1}": "/[1-9][0-9]{0,2}/",
    "{type}": "/number|boolean|null|array|object/",
    "{id}": "/[A-Za-z0-9_.:\\-]{1,64}/",
    "{line}": r"/\n?/",
}


def pattern(text: str, name: str = "") -> str:
    """A regular expression for a text of a format: what is not known in it is left open."""
    said = (
        _OPEN[piece][1:-1] if piece in _OPEN else _escaped(name if piece == "{name}" else piece)
        for piece in _BLANK.split(text)
    )
    return "".join(said)


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")


class LarkRules:
    """The rules of one grammar, each with a name of its own. ``forced``: a call must come."""

    def __init__(self, forced: bool) -> None:
        self.forced = forced
        self._rules: dict[str, str] = {}
        self.own: list[str] = []

    def add(self, name: str, body: str, attributes: str = "") -> str:
        self._rules[name] = f"{name}{attributes}: {body}"
        return name

    def text(self) -> str:
        return "\n".join([*self._rules.values(), *self.own])


class TokenLiterals:
    """How texts are said in the grammars of one vocabulary: control tokens by id, the rest quoted.
    ``special``: the control tokens."""

    def __init__(self, special: Mapping[str, int]) -> None:
        literals = sorted(special, key=len, reverse=True)
        self._special = special
        self._split = (
            re.compile("(" + "|".join(map(re.escape, literals)) + ")") if special else None
        )

    def literal(self, text: str) -> str:
        """``text`` itself."""
        return " ".join(self._token(piece) for piece in self._pieces(text)) or '""'

    def filled(self, text: str, **known: str) -> str:
        """A text of a format: what is known (name, key) in its place, what is not left open."""
        said: list[str] = []
        fixed = ""
        for piece in _BLANK.split(text):
            if piece in _OPEN:
                said += [self.literal(fixed)] if fixed else []
                said.append(_OPEN[piece])
                fixed = ""
            else:
                fixed += known.get(piece[1:-1], piece) if _BLANK.fullmatch(piece) else piece
        return " ".join([*said, self.literal(fixed)] if fixed or not said else said)

    def until(self, rules: LarkRules, name: str, end: str) -> str:
        """Any text up to and with ``end``, as a rule of that name."""
        if end.endswith("{line}"):
            until = self.until(rules, f"{name}_l", end.removesuffix("{line}"))
            return rules.add(name, f"{until} {_OPEN['{line}']}")
        pieces = self._pieces(end)
        token = next((n for n, piece in enumerate(pieces) if piece in self._special), None)
        if token is None:
            return rules.add(name, ANYTHING, f"[suffix={json.dumps(end, ensure_ascii=False)}]")
        before, rest = "".join(pieces[:token]), self.literal("".join(pieces[token:]))
        if not before:
            return rules.add(name, f"{ANYTHING} {rest}")
        # Text that ends as the text before the token does may go on, unless the token follows.
        part = self.until(rules, f"{name}_t", before)
        return rules.add(name, f"{part}+ {rest}")

    def is_special(self, text: str) -> bool:
        """Whether ``text`` begins with a control token."""
        return next(iter(self._pieces(text)), "") in self._special

    def is_plain(self, text: str) -> bool:
        """Whether ``text`` has no control token in it."""
        return not any(piece in self._special for piece in self._pieces(text))

    def _pieces(self, text: str) -> list[str]:
        pieces = self._split.split(text) if self._split is not None else [text]
        return [piece for piece in pieces if piece]

    def _token(self, piece: str) -> str:
        if piece in self._special:
            return f"<[{self._special[piece]}]>"
        return json.dumps(piece, ensure_ascii=False)
