"""The lexer: finds the terminals of a state in a reply, wherever the reply was cut.

Special tokens that formats use become one character each that no text can hold (a lone
surrogate), so terminals may mix special tokens and text. It knows no meaning of any terminal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from antiphon.dialects.formats.types import (
    START,
    TEXT,
    THINKING,
    ReasoningFormat,
    State,
    ToolFormat,
)
from antiphon.tokens import Tokenizer

__all__ = ["QUOTE", "Lexer", "Terminal", "Terminals", "is_special", "terminals_of", "without_marks"]

#: The character that stands for a format's quote, be it a special token or text.
QUOTE = "\ud800"
_MARK = re.compile("[\ud800-\udfff]")
#: Gemma's vocabularies have tokens for HTML tags: these are text, unlike all other special tokens.
_HTML = re.compile(
    r"</?(?:table|caption|t(?:head|body|foot|r|h|d)|strong|em|b|i|u|s|strike|del|ins|mark|code|pre"
    r"|sub|sup|h[1-6]|blockquote|[uod]l|li|d[td]|p|br|hr|img|a|span|div)>"
)

#: Where a terminal leads: the state, and whether the terminal is left to be read there.
Terminal = tuple[str, bool]


class Terminals:
    """The terminals of one state."""

    def __init__(self, leads: Mapping[str, Terminal]) -> None:
        self.leads = leads
        longest_first = sorted(leads, key=len, reverse=True)
        # A special token that leads nowhere from here is found too: it is dropped, never text.
        self._pattern = re.compile("|".join([*map(re.escape, longest_first), _MARK.pattern]))
        first = "".join({re.escape(word[0]) for word in leads})
        #: Finds a character that a terminal may begin with: without any, text is plain.
        self.begins = re.compile(f"[{first}\ud800-\udfff]").search
        self._begun = frozenset(word[:n] for word in leads for n in range(1, len(word)))
        self._longest = max(map(len, leads), default=1)

    def find(self, text: str, final: bool) -> tuple[int, str | None]:
        """Where the plain text ends, and the terminal there. None: all of ``text`` is plain, or,
        unless it is ``final``, what follows may be the beginning of a terminal."""
        if self.begins(text) is None:
            return len(text), None
        found = self._pattern.search(text)
        at = len(text) if found is None else found.start()
        if not final:
            for begun in range(max(0, len(text) - self._longest + 1), min(at + 1, len(text))):
                if text[begun:] in self._begun:
                    return begun, None
        return at, None if found is None else found.group()


class Lexer:
    """The terminals of a pair of formats, as one tokenizer writes them. Immutable."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
    ) -> None:
        leads = _leads(reasoning, tools)
        kept = reasoning is not None and reasoning.kept
        shown = {*reasoning.open, *reasoning.close} if reasoning is not None and kept else set()
        quote = "" if tools is None else tools.quote
        written = "\n".join({literal for on in leads.values() for literal in on} | {quote})
        special = tokenizer.special
        used = sorted((literal for literal in special if literal in written), key=len, reverse=True)
        spelled = {literal: chr(ord(QUOTE) + n) for n, literal in enumerate(used[:2000], start=1)}
        self._literals = {mark: literal for literal, mark in spelled.items()} | {QUOTE: quote}
        #: The format's quote, as it is found.
        self.quote = _spell(quote, spelled)
        #: What stands for a special token: a character, or nothing for those no format uses.
        self.marks: Mapping[int, str] = {
            token: spelled.get(literal, "")
            for literal, token in special.items()
            if literal not in shown
            and (literal in spelled or not _HTML.fullmatch(literal) or token in tokenizer.end_ids)
        }
        #: What other tokens have turned out to stand for.
        self.known: dict[int, str] = {}
        #: By state.
        self.states: Mapping[str, Terminals] = {
            state: Terminals({_spell(literal, spelled): lead for literal, lead in on.items()})
            for state, on in leads.items()
        }
        if reasoning is not None and not kept:
            # In the middle of an answer, what begins thinking or answers is only text, spelled out.
            begins = (*reasoning.open, reasoning.answer[0])
            textual = {tag for tag in begins if not is_special(_spell(tag, spelled))}
            leads_on = self.states[TEXT].leads
            self.states = {
                **self.states,
                TEXT: Terminals(
                    {tag: lead for tag, lead in leads_on.items() if tag not in textual}
                ),
            }

    def is_dropped(self, token: int) -> bool:
        """Whether this token never stands for any text."""
        return self.marks.get(token) == ""

    def plain(self, text: str) -> str:
        """``text`` with its special tokens spelled out."""
        return _MARK.sub(lambda mark: self._literals[mark.group()], text)


def is_special(terminal: str) -> bool:
    """Whether no text can spell this terminal."""
    return _MARK.search(terminal) is not None


def without_marks(text: str) -> str:
    """``text`` without its special tokens."""
    return _MARK.sub("", text)


def _spell(literal: str, marks: Mapping[str, str]) -> str:
    for special, mark in marks.items():
        literal = literal.replace(special, mark)
    return literal


def terminals_of(reasoning: ReasoningFormat | None, tools: ToolFormat | None) -> frozenset[str]:
    """All terminals of a pair of formats, in their own words."""
    return frozenset(literal for on in _leads(reasoning, tools).values() for literal in on)


def _leads(
    reasoning: ReasoningFormat | None, tools: ToolFormat | None
) -> dict[str, dict[str, Terminal]]:
    """What leads where, for all states of a pair of formats, in the words of the formats."""
    if reasoning is not None and reasoning.kept:
        reasoning = None
    begin = {} if reasoning is None else dict.fromkeys(reasoning.open, THINKING)
    end = () if reasoning is None else reasoning.close
    frames = (
        ()
        if reasoning is None
        else tuple(filter(None, (*reasoning.answer, reasoning.header, *reasoning.frames)))
    )
    leads_in = () if reasoning is None else reasoning.leads
    opens = {} if tools is None else dict(tools.opens)
    states: Mapping[str, State] = {} if tools is None else tools.states
    # After a call, ends of markup that nothing opened mean nothing.
    strays = {
        literal: START
        for state in states.values()
        for literal, to in state.on.items()
        if to == START and len(literal) > 1
    }
    leads = {
        START: _to(strays | dict.fromkeys((*leads_in, *frames, *end), START) | opens | begin),
        TEXT: _to(dict.fromkeys((*frames, *end), TEXT) | opens | begin),
        THINKING: _to(opens | begin | dict.fromkeys(end, START)),
    }
    if tools is not None:
        leads[START] |= _to({tools.bare: tools.bare_state} if tools.bare else {}, left=True)
    for name, state in states.items():
        leads[name] = _to(state.on) | _to(state.peek, left=True)
        if tools is not None and tools.quote and state.reads in ("pairs", "elements"):
            leads[name][tools.quote] = (name, False)
    return leads


def _to(on: Mapping[str, str], *, left: bool = False) -> dict[str, Terminal]:
    return {literal: (state, left) for literal, state in on.items()}
