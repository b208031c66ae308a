"""Encode a rendered prompt as token ids, and reuse the token ids of earlier turns.

Templates write control tokens as text. If a user's text contains the same characters, these
characters must not become the control token. Therefore, they are masked before the prompt is
rendered: Unicode private-use characters replace them. When the prompt is encoded, the private-use
characters become the user's text again, encoded as ordinary tokens.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.inference.conversation import PromptTokens
from antiphon.inference.tokens import Tokenizer
from antiphon.support.text import replace_lone_surrogates

#: Precedes another private-use character, which identifies the masked text. If a user's text
#: contains the escape character itself, it is masked as well.
_ESCAPE = "\U0010fffd"
_FIRST_CODE = 0x100000
_MASKED = re.compile(f"{_ESCAPE}(.?)", re.DOTALL)

#: Minimum number of ids of a beginning in the cache. Comparing a shorter beginning again is faster
#: than finding it in the cache.
_MIN_BEGINNING = 1024
#: Maximum number of ids of all remembered beginnings together: about 20 MB.
_MAX_REMEMBERED = 500_000
#: How many of a beginning's last ids are compared first.
_TAIL = 16


class _Beginning(Struct, frozen=True):
    """An entry of the cache ``_Beginnings``: the first part of a prompt, which ends with a control
    token. ``ids``: the token ids of this part. ``text``: the text of the ids. In the text,
    private-use characters replace the control tokens that users wrote."""

    ids: tuple[int, ...]
    text: str

    @property
    def size(self) -> tuple[int, int]:
        """The number of token ids, and the number of characters of the text."""
        return len(self.ids), len(self.text)

    def starts(self, ids: Sequence[int], masked: str) -> bool:
        """Return whether ``ids`` starts with the ids of this beginning, and ``masked`` starts with
        its text.

        ``ids``: the token ids of an earlier prompt and its reply. ``masked``: the text of the new
        prompt, in which the control tokens that users wrote are masked.
        """
        size = len(self.ids)
        return (
            self.ids[-_TAIL:] == ids[size - _TAIL : size]
            and masked.startswith(self.text)
            and self.ids == ids[:size]
        )


class _Beginnings:
    """A cache of the beginnings of the latest prompts. A beginning is the first part of a prompt's
    token ids, with the text that these ids spell.

    A new prompt reuses the stored token ids of an earlier prompt and its reply. To check which of
    these ids can be reused, the ids are decoded, and their text is compared with the text of the
    new prompt. If a beginning of the stored ids is in the cache, only the ids after this beginning
    must be decoded. The cache is thread-safe, because several threads encode prompts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[_Beginning] = deque()
        self._size = 0

    def find(self, ids: Sequence[int], masked: str) -> tuple[_Beginning, ...]:
        """Return each cached beginning for which two conditions hold: ``ids`` starts with the ids
        of the beginning, and ``masked`` starts with its text. The shortest beginning comes first.

        ``masked``: the text of the new prompt, in which private-use characters replace the control
        tokens that users wrote. ``ids``: the token ids of an earlier prompt and its reply.
        """
        with self._lock:
            entries = tuple(self._entries)
        found = (entry for entry in entries if entry.starts(ids, masked))
        return tuple(sorted(found, key=lambda entry: len(entry.ids)))

    def remember(self, added: _Beginning, shorter: Collection[_Beginning]) -> None:
        """Add the beginning ``added`` to the cache, and remove the cached beginnings ``shorter``.
        These are shorter beginnings of the same prompt. If the cache is then too large, its oldest
        entries are removed."""
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
    """Masks and encodes the texts of prompts for one tokenizer. In a masked text, private-use
    characters replace the control tokens that a user wrote.

    ``fingerprint``: the tokenizer's identifier in stored prompts. Stored token ids are reused only
    if they have the same identifier.
    """

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

    def mask(self, value: object) -> Any:
        """Return ``value`` with all strings in it masked: private-use characters replace the
        control tokens that a user wrote. ``value``: a string, or lists and objects that contain
        strings."""
        if isinstance(value, str):
            for char in self._first_chars:  # a search for one character is much faster
                if char in value:
                    return self._maskable.sub(self._mask_match, value)
            return value
        if type(value) is dict or isinstance(value, Mapping):  # the second check is much slower
            return {self.mask(name): self.mask(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask(inner) for inner in value]
        return value

    def _mask_match(self, match: re.Match[str]) -> str:
        return _ESCAPE + self._codes[match.group()]

    def unmask(self, masked: str) -> str:
        """Return the original text of ``masked``, in which private-use characters replace control
        tokens. If a template has truncated the text inside a masked token, this token is dropped.
        """
        return _MASKED.sub(self._literal, masked) if _ESCAPE in masked else masked

    def _literal(self, sign: re.Match[str]) -> str:
        code = ord(sign.group(1)) - _FIRST_CODE if sign.group(1) else -1
        return self._literals[code] if 0 <= code < len(self._literals) else sign.group(1)

    def encode(self, masked: str, stored: PromptTokens | None) -> tuple[int, ...]:
        """Return the token ids of a prompt's text. ``masked``: the text, in which private-use
        characters replace the control tokens that users wrote. ``stored``: the ids of an earlier
        prompt and its reply, or None.

        If the text starts with the text of ``stored``, the result starts with the ids of
        ``stored``, so that an engine finds them in its cache. If the two texts have only a common
        start, the ids of this start are reused. Text between two control tokens is reused only as a
        whole.
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
                break  # the tokenizer would insert a space before the text that follows
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
        """Return the token ids of a text with images, and the position of each image. The position
        is the index of the first token id that belongs to the image.

        ``masked``: the text, in which private-use characters replace the control tokens that users
        wrote. ``mark``: the character that stands for each image. ``image_text``: the text that
        replaces each mark. It may contain control tokens. The texts before and after a mark are
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
        """Split ``ids`` from index ``start`` on into parts. A part is one control token, or a
        sequence of other ids between control tokens.

        Yields (start, end, text) for each part. The text of a control token is the token itself.
        The text of a sequence is masked: private-use characters replace the control tokens that a
        user wrote. It is None if the bytes of the sequence are not valid UTF-8.
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
        """Yield the texts from which the tokenizer can have made a sequence of token ids.
        ``text``: the decoded sequence. If it is None or empty, nothing is yielded.

        A SentencePiece tokenizer may have inserted a space at the start of ``text``. Therefore,
        ``text`` without this space is yielded as well.
        """
        if text:
            yield text
            if self._adds_space and text.startswith(" ") and text != " ":
                yield text[1:]


def _any_of(literals: Collection[str]) -> str:
    """Return a regex that matches any of ``literals``. If several literals match, it matches the
    longest.

    The literals are written as a tree: the regex contains the common start of several literals only
    once. A list of all literals would be slow, because some vocabularies have thousands of literals
    with a common start.
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
