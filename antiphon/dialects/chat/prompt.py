"""From rendered text to token ids: what users wrote stays text, what was kept is extended.

Templates spell control tokens as text. A user who spells one must not get it: such literals are
hidden from the template behind private characters and encoded as the plain text they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from antiphon.conversation import PromptTokens
from antiphon.text import replace_lone_surrogates
from antiphon.tokens import Tokenizer

__all__ = ["Encoder"]

#: Stands before one more character of the last plane, which says what is hidden. Users may write
#: it: then it is hidden itself.
_SIGN = "\U0010fffd"
_FIRST = 0x100000
_HIDDEN = re.compile(f"{_SIGN}(.?)", re.DOTALL)


class Encoder:
    """Texts to ids for one tokenizer. Text in which literals are hidden is called masked."""

    def __init__(self, tokenizer: Tokenizer, fingerprint: str) -> None:
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        self._literals = (_SIGN, *tokenizer.special)
        self._codes = {literal: chr(_FIRST + n) for n, literal in enumerate(self._literals)}
        self._of_id = {id: literal for literal, id in tokenizer.special.items()}
        self._forbidden = re.compile(_any_of(self._literals))
        self._control = re.compile(f"({_any_of(tokenizer.special)})")
        spelled = b"".join(map(tokenizer.piece, tokenizer.encode("a", special=False)))
        #: SentencePiece vocabularies may put a blank in front of a text.
        self._adds_blank = spelled == b" a"

    def hide(self, value: Any) -> Any:
        """``value`` (strings, or lists and objects of them), masked."""
        if isinstance(value, str):
            return self._forbidden.sub(self._hidden, value)
        if isinstance(value, Mapping):
            return {self.hide(name): self.hide(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(inner) for inner in value]
        return value

    def _hidden(self, found: re.Match[str]) -> str:
        return _SIGN + self._codes[found.group()]

    def shown(self, masked: str) -> str:
        """The text itself. Half a sign, which a template may leave that cuts text, is dropped."""
        return _HIDDEN.sub(self._literal, masked) if _SIGN in masked else masked

    def _literal(self, sign: re.Match[str]) -> str:
        code = ord(sign.group(1)) - _FIRST if sign.group(1) else -1
        return self._literals[code] if 0 <= code < len(self._literals) else sign.group(1)

    def encode(self, masked: str, kept: PromptTokens | None) -> tuple[int, ...]:
        """Ids that spell ``shown(masked)``. Where it begins with what ``kept`` stands for, these
        ids are extended, so that an engine finds them in its cache; where it only shares a
        beginning, up to the last control token of that."""
        masked = replace_lone_surrogates(masked)
        if kept is None or kept.fingerprint != self._fingerprint:
            return tuple(self._encode(masked))
        taken = at = 0
        for start, end, text in self._runs(kept.ids):
            found = next((t for t in self._spellings(text) if masked.startswith(t, at)), None)
            if found is None:
                break
            if self._adds_blank and end == len(kept.ids) and kept.ids[start] not in self._of_id:
                break  # text encoded behind other text would begin with a blank that is not there
            taken, at = end, at + len(found)
        return (*kept.ids[:taken], *self._encode(masked[at:]))

    def spread(self, masked: str, mark: str, shown: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of a text with marks, and where each mark stood: before which of the ids. ``shown``
        (control tokens and all) is written in its place. Text on both sides is encoded apart."""
        ids: list[int] = []
        places: list[int] = []
        first, *others = replace_lone_surrogates(masked).split(mark)
        ids += self._encode(first)
        for text in others:
            places.append(len(ids))
            ids += self._encode(shown + text)
        return tuple(ids), tuple(places)

    def _encode(self, masked: str) -> list[int]:
        encode = self._tokenizer.encode
        if _SIGN not in masked:
            return encode(masked, special=True)
        ids: list[int] = []
        clear: list[str] = []
        for run in self._control.split(masked):
            if _SIGN in run:
                ids += encode("".join(clear), special=True)
                ids += encode(self.shown(run), special=False)
                clear.clear()
            else:
                clear.append(run)
        return ids + encode("".join(clear), special=True)

    def _runs(self, ids: Sequence[int]) -> Iterator[tuple[int, int, str | None]]:
        """Each control token, and each stretch between two: (start, end, masked text), no text for
        bytes that are none."""
        start = 0
        for at, id in enumerate((*ids, None)):
            if id is not None and id not in self._of_id:
                continue
            if start < at:
                yield start, at, self._text(ids[start:at])
            if id is not None:
                yield at, at + 1, self._of_id[id]
            start = at + 1

    def _text(self, ids: Sequence[int]) -> str | None:
        try:
            text = b"".join(map(self._tokenizer.piece, ids)).decode()
        except UnicodeDecodeError:
            return None
        return str(self.hide(text))

    def _spellings(self, text: str | None) -> Iterator[str]:
        if text:
            yield text
            if self._adds_blank and text.startswith(" ") and text != " ":
                yield text[1:]


def _any_of(literals: Collection[str]) -> str:
    """A pattern for the longest of ``literals``, as a tree: some vocabularies have thousands that
    begin alike."""
    tree: dict[str, Any] = {}
    for literal in literals:
        node = tree
        for char in literal:
            node = node.setdefault(char, {})
        node[""] = {}
    return _pattern(tree) if tree else "(?!)"


def _pattern(node: dict[str, Any]) -> str:
    text = ""
    while len(node) == 1:
        char, node = next(iter(node.items()))
        if not char:
            return text
        text += re.escape(char)
    arms = [re.escape(char) + _pattern(inner) for char, inner in node.items() if char]
    return f"{text}(?:{'|'.join(arms)}){'?' if '' in node else ''}"
