"""The lexer of the output parser. It finds terminals in a reply, however the reply is split into
chunks. A terminal is a text or special token that leads from one state of the parser to another.

The lexer replaces each special token that has a meaning in the format. The replacement is called
the token's mark. A mark is one character, a lone surrogate, which no text can contain. So one
terminal can consist of both special tokens and text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from antiphon.dialects.formats.types import (
    END,
    NAME,
    OUTSIDE,
    PARAMETER,
    RESULT,
    START,
    STRAY,
    TEXT,
    THINKING,
    UNWRAPPED,
    WHOLE_ANSWER,
    WHOLE_OPENS,
    ReasoningFormat,
    Sequences,
    State,
    ToolFormat,
)
from antiphon.inference.tokens import Tokenizer

#: The mark that stands for a format's quote, even if the quote is text and not a special token.
QUOTE = "\ud800"
_MARK = re.compile("[\ud800-\udfff]")
#: Gemma's vocabularies have special tokens for HTML tags. These tokens are text, while all other
#: special tokens are not.
_HTML = re.compile(
    r"</?(?:table|caption|t(?:head|body|foot|r|h|d)|strong|em|b|i|u|s|strike|del|ins|mark|code|pre"
    r"|sub|sup|h[1-6]|blockquote|[uod]l|li|d[td]|p|br|hr|img|a|span|div)>"
)

#: The state to which a terminal leads, and whether that state reads the terminal again (``peek``).
Transition = tuple[str, bool]


#: Stands for a state outside of the tool format.
_OUTSIDE = State(reads="between")
#: Limits of the text after a terminal that is held back: white space between two parts, a name, and
#: a text where the format allows none.
_MAX_BLANK = 64
_MAX_STRAY = 1_024
_BLANK = re.compile(rf"\s{{0,{_MAX_BLANK}}}")
_PLAIN_NAME = re.compile(r"[\w.\-$:/]+")
#: A name, which may stand in quotes even if the format has none.
_NAME = re.compile("([\"']?)([^<>{\"'\n\ud800-\udfff]{0,64})")


#: Texts that may follow a terminal, as a tree: a part of a sequence (``Sequences``), with marks in
#: place of special tokens → the parts that may follow it. The part "" ends a sequence.
Tree = Mapping[str, Any]


def _tree(sequences: Sequences, mark: Callable[[str], str]) -> Tree:
    tree: dict[str, Any] = {}
    for parts in sequences:
        node = tree
        for part in parts:
            node = node.setdefault(mark(part.strip()), {})
        node[""] = {}
    return tree


def _any(results: Iterable[bool | None]) -> bool | None:
    """Return True if a result is true, otherwise None if one is unknown, and False if none is."""
    found: bool | None = False
    for result in results:
        if result:
            return True
        found = None if result is None else found
    return found


class QuotedCall(NamedTuple):
    """A ``Quotation`` of a state, with marks in place of special tokens."""

    begins: Tree
    closes: tuple[str, ...]
    follows: Tree


class Continuation:
    """Decides whether a terminal ends a value, from the text that follows it.

    ``text``: the text. ``is_final``: whether nothing follows it. ``parameters``: the parameters
    that the call has not given yet, or None if they are unknown. ``is_wrapped``: whether the calls
    began with the tag of their section. ``closing``: the closing tag of the value.
    """

    def __init__(
        self,
        text: str,
        *,
        is_final: bool,
        parameters: Collection[str] | None,
        is_wrapped: bool,
        closing: str,
    ) -> None:
        self._text = text
        self._is_final = is_final
        self._parameters = parameters
        self._is_wrapped = is_wrapped
        self._closing = closing
        self._is_over = False

    def matches(self, tree: Tree, at: int, *, is_over: bool = False) -> bool | None:
        """Return whether one of the sequences of ``tree`` stands at the position ``at``. Returns
        None if this depends on text that has not arrived yet. ``is_over``: whether the reply must
        end after it."""
        self._is_over = is_over
        return self._find(tree, at)

    def _find(self, tree: Tree, at: int) -> bool | None:
        return _any(self._match(part, following, at) for part, following in tree.items())

    def _match(self, part: str, following: Tree, at: int) -> bool | None:
        if part == STRAY:
            return _any(self._match_later(*each, at) for each in following.items())
        if part == "" and not self._is_over:
            return True
        match_part = self._match_name if part in (NAME, PARAMETER) else self._match_literal
        matched, at = match_part(part or END, at)
        return self._find(following, at) if matched and following else matched

    def _match_later(self, part: str, following: Tree, at: int) -> bool | None:
        """Match a text in which the value's closing tag does not occur, and ``part`` after it."""
        limit = min(len(self._text), at + _MAX_STRAY)
        stop = self._text.find(self._closing, at, limit)
        found = -1 if part == END else self._text.find(part, at, limit)
        if 0 <= found and (stop < 0 or found < stop):
            return self._match(part, following, found)
        if stop >= 0 or limit == at + _MAX_STRAY:
            return False
        return part == END if self._is_final else None

    def _match_name(self, part: str, at: int) -> tuple[bool | None, int]:
        found = _NAME.match(self._text, self._skip_blank(at))
        known = self._parameters if part == PARAMETER else None
        assert found is not None
        quote, name, end = found[1], found[2].rstrip(), found.end()
        if quote and self._text.startswith(quote, end):
            end += 1
        if end == len(self._text) and not self._is_final:
            is_prefix = known is None or any(each.startswith(name) for each in known)
            return None if is_prefix else False, end
        if known is None:
            is_name = _PLAIN_NAME.fullmatch(name) or name in (self._parameters or ())
            return bool(is_name), end
        return name in known, end

    def _match_literal(self, part: str, at: int) -> tuple[bool | None, int]:
        if part == UNWRAPPED:
            return not self._is_wrapped, at
        end = self._skip_blank(at)
        if end == len(self._text) and not self._is_final:
            return None if end - at < _MAX_BLANK else False, end
        if part == END:
            return end == len(self._text), end
        if self._text.startswith(part, end):
            return True, end + len(part)
        left = self._text[end : end + len(part)]
        is_prefix = not self._is_final and len(left) < len(part) and part.startswith(left)
        return None if is_prefix else False, end

    def _skip_blank(self, at: int) -> int:
        blank = _BLANK.match(self._text, at)
        assert blank is not None
        return blank.end()


class StateTerminals:
    """The terminals of one parser state: the texts and special tokens that lead to other states.

    ``transitions``: terminal → its transition. The string of a terminal contains a mark in place of
    each special token. ``ends``, ``closing``, ``quotes``, ``doubles``: how a value ends, as in
    ``state``, the state's row in the table. ``mark``: puts marks in place of special tokens.
    """

    def __init__(
        self,
        transitions: Mapping[str, Transition],
        state: State = _OUTSIDE,
        mark: Callable[[str], str] = str,
    ) -> None:
        self.transitions = transitions
        self.ends = {mark(each): _tree(found, mark) for each, found in state.ends.items()}
        self.closing = mark(state.closing)
        self.quotes = {
            mark(each): QuotedCall(
                _tree(found.begins, mark),
                tuple(map(mark, found.closes)),
                _tree(found.follows, mark),
            )
            for each, found in state.quotes.items()
        }
        self.doubles = {mark(each): opening for each, opening in state.doubles.items()}
        longest_first = sorted(transitions, key=len, reverse=True)
        # Special tokens without a transition are matched too: they are dropped and never text.
        self._pattern = re.compile("|".join([*map(re.escape, longest_first), _MARK.pattern]))
        first = "".join({re.escape(word[0]) for word in transitions})
        #: Finds a character with which a terminal may begin. Text without such a character is
        #: plain.
        self.find_start = re.compile(f"[{first}\ud800-\udfff]").search
        self._prefixes = frozenset(word[:n] for word in transitions for n in range(1, len(word)))
        self._longest = max(map(len, transitions), default=1)

    def find(self, text: str, final: bool) -> tuple[int, str | None]:
        """Search ``text`` for the first terminal.

        Returns the length of the plain text before the terminal, and the terminal. If there is no
        terminal, returns the length of the plain text and None.

        ``final``: whether no text follows. If it is False, the end of ``text`` may be the first
        part of a terminal. This part does not count as plain text.
        """
        if self.find_start(text) is None:
            return len(text), None
        match = self._pattern.search(text)
        at = len(text) if match is None else match.start()
        if not final:
            for start in range(max(0, len(text) - self._longest + 1), min(at + 1, len(text))):
                if text[start:] in self._prefixes:
                    return start, None
        return at, None if match is None else match.group()


class Lexer:
    """Finds the terminals of a reasoning format and a tool format in a model's output. A lexer is
    immutable except for its cache of texts.

    ``result_tags``: the tags that the prompt writes before and after tool results, if the model was
    not trained with these tags. The model may imitate them, so they are terminals, too.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
        result_tags: tuple[str, str] | None = None,
    ) -> None:
        transitions = _transitions(reasoning, tools)
        if result_tags is not None:
            _add_result_tags(transitions, *result_tags)
        quote = "" if tools is None else tools.quote
        self._marks_by_literal = _assign_marks(tokenizer, transitions, quote)
        self._literals = {mark: literal for literal, mark in self._marks_by_literal.items()}
        self._literals[QUOTE] = quote
        #: The format's quote, with marks in place of its special tokens.
        self.quote = self.mark(quote)
        #: Id of a special token → its mark, or "" if no format uses the token.
        self.marks: Mapping[int, str] = self._marks_by_id(tokenizer, reasoning)
        #: Token id → text. The detokenizers that share this lexer add entries.
        self.text_cache: dict[int, str] = {}
        #: The marks of special tokens that end the model's output.
        self.end_marks = frozenset(filter(None, map(self.marks.get, tokenizer.end_ids)))
        #: The terminals that close the reasoning.
        self.reasoning_ends = frozenset(
            self.mark(literal) for literal in (() if reasoning is None else reasoning.close)
        )
        #: State → its terminals.
        self.states: Mapping[str, StateTerminals] = self._terminals(transitions, reasoning, tools)
        terminals = {name: "".join(each.transitions) for name, each in self.states.items()}
        outer = self.quote + "".join(map(terminals.__getitem__, OUTSIDE))
        #: The marks of special tokens, and other characters, that stand only in tags of calls.
        self.call_marks = frozenset("".join(terminals.values())) - {*outer}

    def _marks_by_id(
        self, tokenizer: Tokenizer, reasoning: ReasoningFormat | None
    ) -> dict[int, str]:
        """Return a mapping: id of a special token → its mark, the character that stands for the
        token. The mark is ``""`` if no format uses the token.

        Special tokens that count as plain text are left out: HTML tags, and the reasoning tags of a
        format that keeps the reasoning in the answer.
        """
        keeps_tags = reasoning is not None and reasoning.keeps_reasoning
        text_tags = {*reasoning.open, *reasoning.close} if reasoning and keeps_tags else set()
        marks = self._marks_by_literal
        return {
            token: marks.get(literal, "")
            for literal, token in tokenizer.special.items()
            if literal not in text_tags
            and (literal in marks or not _HTML.fullmatch(literal) or token in tokenizer.end_ids)
        }

    def _terminals(
        self,
        transitions: Mapping[str, Mapping[str, Transition]],
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
    ) -> dict[str, StateTerminals]:
        """Return a mapping: parser state → its terminals, which are the texts and special tokens
        that lead to other states.

        ``transitions``: state → terminal → next state, with special tokens spelled as text. In the
        result, a mark (a character that no text can contain) stands for each special token.
        """
        marked = {
            state: {self.mark(literal): transition for literal, transition in on.items()}
            for state, on in transitions.items()
        }
        if reasoning is not None and not reasoning.keeps_reasoning:
            # In the middle of an answer, a tag that would open reasoning or an answer is plain
            # text, except if it contains a special token.
            for literal in (*reasoning.open, reasoning.answer[0]):
                tag = self.mark(literal)
                if not is_special(tag):
                    marked[TEXT].pop(tag, None)
        states: Mapping[str, State] = {} if tools is None else tools.states
        mark = cache(self.mark)  # the sequences of a state have many parts in common
        return {
            name: StateTerminals(on, states.get(name, _OUTSIDE), mark)
            for name, on in marked.items()
        }

    def mark(self, literal: str) -> str:
        """Return ``literal`` with a mark in place of each special token."""
        for special, mark in self._marks_by_literal.items():
            literal = literal.replace(special, mark)
        return literal

    def is_dropped(self, token: int) -> bool:
        """Return whether ``token`` is a special token that the parser drops, because no format uses
        it and it never counts as text."""
        return self.marks.get(token) == ""

    def spell_out(self, text: str) -> str:
        """Return ``text`` with each mark replaced by the text of its special token."""
        return _MARK.sub(lambda mark: self._literals[mark.group()], text)


def is_special(terminal: str) -> bool:
    """Return whether a terminal contains a mark."""
    return _MARK.search(terminal) is not None


def strip_marks(text: str) -> str:
    """Return ``text`` without marks, the characters that stand for special tokens."""
    return _MARK.sub("", text)


def _assign_marks(
    tokenizer: Tokenizer, transitions: Mapping[str, Mapping[str, Transition]], quote: str
) -> dict[str, str]:
    """Assign a mark to each special token that the formats use. Returns a mapping: text of the
    token → its mark.

    ``transitions``: the terminals of the formats. ``quote``: the text or special token that the
    tool format writes around strings. Longer tokens come first in the result, because the text of a
    longer token may contain a shorter token.
    """
    written = "\n".join({literal for on in transitions.values() for literal in on} | {quote})
    literals = sorted(
        (each for each in tokenizer.special if each in written), key=len, reverse=True
    )
    return {literal: chr(ord(QUOTE) + n) for n, literal in enumerate(literals[:2000], start=1)}


def terminals_of(reasoning: ReasoningFormat | None, tools: ToolFormat | None) -> frozenset[str]:
    """Return the terminals of a reasoning format and a tool format: all texts that have a meaning
    in one of them. A special token in a terminal is written as its text."""
    return frozenset(literal for on in _transitions(reasoning, tools).values() for literal in on)


def _transitions(
    reasoning: ReasoningFormat | None, tools: ToolFormat | None
) -> dict[str, dict[str, Transition]]:
    """Return a mapping: parser state → terminal → next state."""
    if reasoning is None or reasoning.keeps_reasoning:
        reasoning = ReasoningFormat(name="", mark="")
    begin, end = dict.fromkeys(reasoning.open, THINKING), reasoning.close
    frames = tuple(filter(None, (*reasoning.answer, reasoning.header, *reasoning.frames)))
    opens = {} if tools is None else dict(tools.opens)
    inner = frozenset[str]() if tools is None else tools.inner
    outer = {literal: to for literal, to in opens.items() if literal not in inner}
    starts = {literal: to for literal, to in opens.items() if literal.strip()}
    has_messages = tools is not None and tools.has_messages
    if has_messages:
        opens, outer = {}, {}
    states: Mapping[str, State] = {} if tools is None else tools.states
    # After a call, closing tags that nothing opened have no meaning.
    strays = {
        literal: START
        for state in states.values()
        for literal, to in state.on.items()
        if to == START and len(literal) > 1
    }
    transitions = {
        START: _transitions_to(
            strays | dict.fromkeys((*reasoning.leads, *frames, *end), START) | starts | begin
        ),
        TEXT: _transitions_to(
            dict.fromkeys((*frames, *end), START if has_messages else TEXT)
            | opens
            | ({} if has_messages else begin)
        ),
        THINKING: _transitions_to(outer | begin | dict.fromkeys(end, START)),
    }
    transitions[START] |= _transitions_to(dict.fromkeys(reasoning.bare_open, THINKING))
    if has_messages and reasoning.answer[0]:
        # A message to the user is text, whatever it begins with.
        transitions[START] |= _transitions_to({reasoning.answer[0]: TEXT})
    if tools is not None and not has_messages:
        whole = {literal: ("whole answer", peek) for literal, peek in WHOLE_OPENS.items()}
        transitions[START] = whole | transitions[START]
    if tools is not None:
        transitions[START] |= _transitions_to(
            {tools.bare: tools.bare_state} if tools.bare else {}, is_peek=True
        )
    for name, state in ({} if tools is None else {**WHOLE_ANSWER, **states}).items():
        # In the state "whole rest", a closing tag of a call is dropped: the answer is the JSON of a
        # call, and the model has written only the closing one of the two tags around it.
        more = strays if name == "whole rest" else {}
        if name in states:  # a draft of a call may break off where the reasoning ends
            more = dict.fromkeys(end, START)
        on = {**more, **dict.fromkeys(_quoted_tags(state), name), **state.on}
        transitions[name] = _transitions_to(on) | _transitions_to(state.peek, is_peek=True)
        if tools is not None and tools.quote and state.reads in ("pairs", "elements"):
            transitions[name][tools.quote] = (name, False)
    return transitions


def _quoted_tags(state: State) -> set[str]:
    """Return the tags of the calls that a value in this state may quote. Such a tag is text, so the
    state stays the same."""
    return {tag for each, found in state.quotes.items() for tag in (each, *found.closes)}


def _add_result_tags(transitions: dict[str, dict[str, Transition]], begin: str, end: str) -> None:
    """Add the tags around tool results to ``transitions``. In an answer, the opening tag has a
    meaning only at the start of a line."""
    transitions[START] |= _transitions_to({begin: RESULT, end: START})
    transitions[TEXT] |= _transitions_to({f"\n{begin}": RESULT, f"\n{end}": TEXT, end: TEXT})


def _transitions_to(on: Mapping[str, str], *, is_peek: bool = False) -> dict[str, Transition]:
    """Return a mapping: terminal → transition. ``on``: terminal → next state. ``is_peek``: if True,
    the terminal is not consumed, so the text that the next state reads begins with the terminal."""
    return {literal: (state, is_peek) for literal, state in on.items()}
