"""From rendered text to token ids: what users wrote stays text, what was kept is extended.

Templates spell control tokens as text. A user who spells one must not get it: such literals are
hidden from the template behind private characters and encoded as the plain text they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.conversation import Kept
from antiphon.tokens import Tokenizer

__all__ = ["Encoder"]

_OPEN, _CLOSE = "\ue000", "\ue001"
_HIDDEN = re.compile(f"{_OPEN}(\\d+){_CLOSE}")


class Encoder:
    """Texts to ids for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, fingerprint: str) -> None:
        self._tokenizer = tokenizer
        self._fingerprint = fingerprint
        literals = sorted(tokenizer.special, key=len, reverse=True)
        self._literals = literals
        self._pattern = re.compile("|".join(map(re.escape, literals))) if literals else None
        self._special = frozenset(tokenizer.special.values())

    def hide(self, value: Any) -> Any:
        """``value`` (strings, or lists and objects of them) with every control token's literal
        replaced by a sign that no template takes for anything."""
        if isinstance(value, str):
            if self._pattern is None:
                return value
            value = value.replace(_OPEN, "").replace(_CLOSE, "") if _OPEN in value else value
            return self._pattern.sub(self._sign, value)
        if isinstance(value, Mapping):
            return {name: self.hide(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(inner) for inner in value]
        return value

    def _sign(self, match: re.Match[str]) -> str:
        return f"{_OPEN}{self._literals.index(match.group())}{_CLOSE}"

    def shown(self, text: str) -> str:
        """``text`` with what was hidden spelled out again."""
        return _HIDDEN.sub(lambda sign: self._literals[int(sign.group(1))], text)

    def encode(self, text: str, kept: Kept | None) -> tuple[int, ...]:
        """The ids of rendered ``text``. Where it begins with what ``kept`` stands for, these ids
        are extended; where it only shares a beginning, up to the last control token of that."""
        if kept is None or kept.fingerprint != self._fingerprint:
            return tuple(self._encode(text))
        spans = self._spans(text)
        count, position = self._shared(kept.ids, b"".join(said for said, _ in spans))
        return (*kept.ids[:count], *self._encode_from(spans, position))

    def _encode(self, text: str) -> list[int]:
        return self._encode_from(self._spans(text), 0)

    def _spans(self, text: str) -> list[tuple[bytes, bool]]:
        """Stretches of the text: (bytes, whether control tokens may be in them)."""
        spans = []
        at = 0
        for sign in _HIDDEN.finditer(text):
            spans.append((text[at : sign.start()].encode(), True))
            spans.append((self._literals[int(sign.group(1))].encode(), False))
            at = sign.end()
        spans.append((text[at:].encode("utf-8", "replace"), True))
        return spans

    def _encode_from(self, spans: Sequence[tuple[bytes, bool]], position: int) -> list[int]:
        ids: list[int] = []
        at = 0
        for said, special in spans:
            end = at + len(said)
            if end > position and said:
                text = said[max(0, position - at) :].decode("utf-8", "replace")
                ids += self._tokenizer.encode(text, special=special)
            at = end
        return ids

    def _shared(self, ids: Sequence[int], text: bytes) -> tuple[int, int]:
        """How many of the kept ids can be used, and how many bytes of the text they stand for."""
        piece = self._tokenizer.piece
        whole = b"".join(map(piece, ids))
        if text.startswith(whole):
            return len(ids), len(whole)
        position = best = bytes_ = 0
        for count, token in enumerate(ids, 1):
            said = piece(token)
            if not text.startswith(said, position):
                break
            position += len(said)
            if token in self._special:
                best, bytes_ = count, position
        return best, bytes_
