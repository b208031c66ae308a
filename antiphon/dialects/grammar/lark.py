"""Write rules and literals of a grammar in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

ANYTHING = "/(?s:.*)/"
#: Matches a placeholder in a text of a tool format.
_BLANK = re.compile(r"(\{(?:n|n\+1|id|name|key|type|line)\})")
_OPEN: Mapping[str, str] = {
    "{n}": "/[0-9]{1,3}/",
    "{n+1}": "/[1-9][0-9]{0,2}/",
    "{type}": "/number|boolean|null|array|object/",
    "{id}": "/[A-Za-z0-9_.:\\-]{1,64}/",
    "{line}": r"/\n?/",
}


def pattern(text: str, name: str = "") -> str:
    """Return a regex for ``text``, a text from a tool format with placeholders such as ``{id}``.
    The placeholder ``{name}`` is replaced by the argument ``name``. Every other placeholder matches
    any valid value."""
    parts = (
        _OPEN[piece][1:-1] if piece in _OPEN else _escaped(name if piece == "{name}" else piece)
        for piece in _BLANK.split(text)
    )
    return "".join(parts)


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")


class LarkRules:
    """The rules of one grammar by name. ``call_required``: whether the reply must contain a tool
    call. ``user_rules``: the rules of users' grammars."""

    def __init__(self, call_required: bool) -> None:
        self.call_required = call_required
        self._rules: dict[str, str] = {}
        self.user_rules: list[str] = []

    def add(self, name: str, body: str, attributes: str = "") -> str:
        """Add a rule and return its name. A rule of the same name is replaced. ``attributes``: the
        rule's attributes in llguidance's syntax, such as ``[lazy]``."""
        self._rules[name] = f"{name}{attributes}: {body}"
        return name

    def text(self) -> str:
        """Return all rules, one per line."""
        return "\n".join([*self._rules.values(), *self.user_rules])


class TokenLiterals:
    """Writes literals for the grammars of one vocabulary. A control token is written as its token
    id, and other text in quotes.

    ``special``: the text of a control token → its token id.
    """

    def __init__(self, special: Mapping[str, int]) -> None:
        literals = sorted(special, key=len, reverse=True)
        self._special = special
        self._split = (
            re.compile("(" + "|".join(map(re.escape, literals)) + ")") if special else None
        )

    def literal(self, text: str) -> str:
        """Return ``text`` as a literal of a grammar."""
        return " ".join(self._token(piece) for piece in self._pieces(text)) or '""'

    def fill_template(self, text: str, **known: str) -> str:
        """Translate a text of a tool format to grammar syntax. The text may contain placeholders.

        ``known``: the values of ``{key}`` and ``{name}``, such as ``key="city"``. The values become
        part of the literals. Each of the other placeholders, such as ``{id}``, becomes a regex that
        matches any valid value."""
        parts: list[str] = []
        fixed = ""
        for piece in _BLANK.split(text):
            if piece in _OPEN:
                parts += [self.literal(fixed)] if fixed else []
                parts.append(_OPEN[piece])
                fixed = ""
            else:
                fixed += known.get(piece[1:-1], piece) if _BLANK.fullmatch(piece) else piece
        return " ".join([*parts, self.literal(fixed)] if fixed or not parts else parts)

    def add_text_until(self, rules: LarkRules, name: str, end: str) -> str:
        """Add a rule for a text that ends with ``end`` and contains ``end`` nowhere else. Returns
        the name of the rule."""
        if end.endswith("{line}"):
            until = self.add_text_until(rules, f"{name}_l", end.removesuffix("{line}"))
            return rules.add(name, f"{until} {_OPEN['{line}']}")
        pieces = self._pieces(end)
        token = next((n for n, piece in enumerate(pieces) if piece in self._special), None)
        if token is None:
            return rules.add(name, ANYTHING, f"[suffix={json.dumps(end, ensure_ascii=False)}]")
        before, rest = "".join(pieces[:token]), self.literal("".join(pieces[token:]))
        if not before:
            return rules.add(name, f"{ANYTHING} {rest}")
        # The text before the token may also occur at an earlier place where the token does not
        # follow it.
        part = self.add_text_until(rules, f"{name}_t", before)
        return rules.add(name, f"{part}+ {rest}")

    def is_special(self, text: str) -> bool:
        """Return whether ``text`` starts with a control token."""
        return next(iter(self._pieces(text)), "") in self._special

    def is_plain(self, text: str) -> bool:
        """Return whether ``text`` contains no control token."""
        return not any(piece in self._special for piece in self._pieces(text))

    def _pieces(self, text: str) -> list[str]:
        pieces = self._split.split(text) if self._split is not None else [text]
        return [piece for piece in pieces if piece]

    def _token(self, piece: str) -> str:
        if piece in self._special:
            return f"<[{self._special[piece]}]>"
        return json.dumps(piece, ensure_ascii=False)
