"""The lexer: finds the terminals of a state in text, wherever the text was cut.

It holds back only what could still become a terminal. Terminals that are special tokens of the
model never come as text; they are told apart here once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from .formats import ReasoningFormat, ToolFormat

__all__ = ["Lexer"]


class _Terminals:
    """The terminals of one state: those that are text, ready to be searched for, and all."""

    def __init__(self, all_: Collection[str], special: Collection[str]) -> None:
        self.all = frozenset(all_)
        spelled = sorted((t for t in self.all if t not in special), key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, spelled))) if spelled else None
        self.prefixes = frozenset(t[:n] for t in spelled for n in range(1, len(t)))
        self.firsts = frozenset(t[0] for t in spelled)
        self.longest = max((len(t) for t in spelled), default=0)

    def begun(self, text: str) -> int:
        """Length of the longest end of ``text`` that could be a terminal's beginning."""
        tail = text[-(self.longest - 1) :] if self.longest > 1 else ""
        for at, char in enumerate(tail):
            if char in self.firsts and tail[at:] in self.prefixes:
                return len(tail) - at
        return 0


class Lexer:
    """One reply's text. Holds at most one terminal less a character."""

    def __init__(
        self,
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
        special: Collection[str],
    ) -> None:
        thinking = reasoning.open + reasoning.close if reasoning is not None else ()
        steps = tools.steps if tools is not None else {}
        states: dict[str, set[str]] = {"text": set(thinking), "think": set(thinking)}
        for state, terminal in steps:
            states.setdefault(state, set()).add(terminal)
            if state == "text":
                states["think"].add(terminal)
        self._states: Mapping[str, _Terminals] = {
            state: _Terminals(terminals, special) for state, terminals in states.items()
        }
        self._none = _Terminals((), ())
        self._held = ""

    def knows(self, state: str, terminal: str) -> bool:
        """Whether this is a terminal of that state."""
        return terminal in self._states.get(state, self._none).all

    def feed(self, state: str, text: str) -> tuple[str, str | None, str]:
        """(plain text, the terminal after it or None, the text not looked at yet)."""
        terminals = self._states.get(state, self._none)
        text = self._held + text
        self._held = ""
        if terminals.pattern is None:
            return text, None, ""
        found = terminals.pattern.search(text)
        if found is not None:
            return text[: found.start()], found.group(), text[found.end() :]
        held = terminals.begun(text)
        if held:
            self._held = text[-held:]
            text = text[:-held]
        return text, None, ""

    def flush(self) -> str:
        """What was held: no terminal can come of it any more."""
        held, self._held = self._held, ""
        return held
