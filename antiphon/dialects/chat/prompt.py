"""Encode rendered text as token ids; reuse the ids of earlier turns.

Templates spell control tokens as text. A user who spells one must not get that token. Such literals
are masked before rendering: private-use characters replace them, and they are encoded as plain
text.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.conversation import PromptTokens
from antiphon.text import replace_lone_surrogates
from antiphon.tokens import Tokenizer

__all__ = ["ChatPromptEncoder"]

#: Precedes another private-use character, which identifies the literal. Users may write this
#: character as well; then it is masked itself.
_ESCAPE = "\U0010fffd"
_FIRST_CODE = 0x100000
_MASKED = re.compile(f"{_ESCAPE}(.?)", re.DOTALL)

#: Shorter beginnings are compared again faster than they are found.
_MIN_BEGINNING = 1024
#: The most ids that all remembered beginnings may have: about 20 MB.
_MAX_REMEMBERED = 500_000
#: How many of the last ids are compared first.
_TAIL = 16


class _Beginning(Struct, frozen=True):
    """Ids up to a control token, and the masked text that they spell."""

    ids: tuple[int, ...]
    text: str

    @property
    def size(self) -> tuple[int, int]:
        """The number of ids and of characters."""
        return len(self.ids), len(self.text)

    def starts(self, ids: Sequence[int], masked: str) -> bool:
        """Whether the ids and the text start with this beginning."""
        size = len(self.ids)
        return (
            self.ids[-_TAIL:] == ids[size - _TAIL : size]
            and masked.startswith(self.text)
            and self.ids == ids[:size]
        )


class _Beginnings:
    """The beginnings of the latest prompts, compared with their text before.

    A turn of a long conversation then compares what the turn before added. Prompts are encoded in
    several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[_Beginning] = deque()
        self._size = 0

    def find(self, ids: Sequence[int], masked: str) -> tuple[_Beginning, ...]:
        """Return the remembered beginnings of the ids and the text, the shortest one first."""
        with self._lock:
            entries = tuple(self._entries)
        found = (entry for entry in entries if entry.starts(ids, masked))
        return tuple(sorted(found, key=lambda entry: len(entry.ids)))

    def remember(self, added: _Beginning, shorter: Collection[_Beginning]) -> None:
        """Add a beginning in place of ``shorter`` ones of the same prompt. The oldest ones go."""
        if not _MIN_BEGINNING <= len(added.ids) <= _MAX_REMEMBERED:
            return
        replaced = {id(entry) for entry in shorter}
        with self._lock:
            entries = [entry for entry in self._entries if id(entry) not in replaced]
            self._entries = deque((*entries, added))
            self._size = sum(len(entry.ids) for entry in self._entries)
            while self._size > _MAX_REMEMBERED:
                self._size -= len(self._entries.popleft().ids)


class ChatPromptEncoder:
    """Encodes texts for one tokenizer. A text whose literals are replaced is called masked."""

    def __init__(self, tokenizer: Tokenizer, fingerprint: str) -> None:
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        self._literals = (_ESCAPE, *tokenizer.special)
        self._codes = {literal: chr(_FIRST_CODE + n) for n, literal in enumerate(self._literals)}
        self._literal_of_id = {id: literal for literal, id in tokenizer.special.items()}
        self._maskable = re.compile(_any_of(self._literals))
        self._first_chars = tuple({literal[0] for literal in self._literals})
        self._control_pattern = re.compile(f"({_any_of(tokenizer.special)})")
        spelled = b"".join(map(tokenizer.piece, tokenizer.encode("a", special=False)))
        #: SentencePiece vocabularies may insert a space before a text.
        self._adds_space = spelled == b" a"
        self._beginnings = _Beginnings()

    def mask(self, value: Any) -> Any:
        """Return ``value`` (a string, or lists and objects of strings) masked."""
        if isinstance(value, str):
            for char in self._first_chars:  # found much faster than the pattern
                if char in value:
                    return self._maskable.sub(self._mask_match, value)
            return value
        if type(value) is dict or isinstance(value, Mapping):  # the second takes much longer
            return {self.mask(name): self.mask(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask(inner) for inner in value]
        return value

    def _mask_match(self, match: re.Match[str]) -> str:
        return _ESCAPE + self._codes[match.group()]

    def unmask(self, masked: str) -> str:
        """Return the original text. Half an escape, left by a template that truncates text, is
        dropped.
        """
        return _MASKED.sub(self._literal, masked) if _ESCAPE in masked else masked

    def _literal(self, sign: re.Match[str]) -> str:
        code = ord(sign.group(1)) - _FIRST_CODE if sign.group(1) else -1
        return self._literals[code] if 0 <= code < len(self._literals) else sign.group(1)

    def encode(self, masked: str, stored: PromptTokens | None) -> tuple[int, ...]:
        """Return ids that spell ``unmask(masked)``.

        If the text starts with the text of ``stored``, the result starts with those ids, so that an
        engine finds them in its cache. If only a part is equal, it starts with the ids up to the
        last control token of that part.
        """
        masked = replace_lone_surrogates(masked)
        if stored is None or stored.fingerprint != self._fingerprint:
            return tuple(self._encode(masked))
        known = self._beginnings.find(stored.ids, masked)
        taken, at = known[-1].size if known else (0, 0)
        boundary = first = taken, at
        for start, end, text in self._runs(stored.ids, taken):
            match = next((t for t in self._possible_texts(text) if masked.startswith(t, at)), None)
            if match is None:
                break
            if (
                self._adds_space
                and end == len(stored.ids)
                and stored.ids[start] not in self._literal_of_id
            ):
                break  # text encoded after other text would start with an additional space
            taken, at = end, at + len(match)
            if stored.ids[end - 1] in self._literal_of_id:
                boundary = taken, at
        if boundary != first:
            beginning = _Beginning(stored.ids[: boundary[0]], masked[: boundary[1]])
            self._beginnings.remember(beginning, known)
        return stored.ids[:taken] + tuple(self._encode(masked[at:]))

    def encode_with_images(
        self, masked: str, mark: str, image_text: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids of a text with image marks, and the position of each mark among the ids.

        ``image_text`` (control tokens included) replaces each mark. The texts on both sides are
        encoded separately.
        """
        ids: list[int] = []
        positions: list[int] = []
        first, *others = replace_lone_surrogates(masked).split(mark)
        ids += self._encode(first)
        for text in others:
            positions.append(len(ids))
            ids += self._encode(image_text + text)
        return tuple(ids), tuple(positions)

    def _encode(self, masked: str) -> list[int]:
        encode = self._tokenizer.encode
        if _ESCAPE not in masked:
            return encode(masked, special=True)
        ids: list[int] = []
        clear: list[str] = []
        for run in self._control_pattern.split(masked):
            if _ESCAPE in run:
                ids += encode("".join(clear), special=True)
                ids += encode(self.unmask(run), special=False)
                clear.clear()
            else:
                clear.append(run)
        return ids + encode("".join(clear), special=True)

    def _runs(self, ids: Sequence[int], start: int) -> Iterator[tuple[int, int, str | None]]:
        """Yield each control token from ``start`` on, and each run of ids between two: (start, end,
        masked text).

        The text is None if the bytes are not valid UTF-8.
        """
        for at, id in enumerate((*ids[start:], None), start):
            if id is not None and id not in self._literal_of_id:
                continue
            if start < at:
                yield start, at, self._text(ids[start:at])
            if id is not None:
                yield at, at + 1, self._literal_of_id[id]
            start = at + 1

    def _text(self, ids: Sequence[int]) -> str | None:
        try:
            text = b"".join(map(self._tokenizer.piece, ids)).decode()
        except UnicodeDecodeError:
            return None
        return str(self.mask(text))

    def _possible_texts(self, text: str | None) -> Iterator[str]:
        if text:
            yield text
            if self._adds_space and text.startswith(" ") and text != " ":
                yield text[1:]


def _any_of(literals: Collection[str]) -> str:
    """Return a regex for the longest of ``literals``, as a tree.

    Some vocabularies have thousands of literals with a common prefix.
    """
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
