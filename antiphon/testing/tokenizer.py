"""A small tokenizer for tests. Its tokens are the 256 bytes and a few special tokens. It implements
``Tokenizer`` like the tokenizers of real models."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["END", "ByteTokenizer"]

#: The end-of-turn token of every ``ByteTokenizer``.
END = "<|end|>"


class ByteTokenizer:
    """``Tokenizer`` whose ids 0 to 255 are bytes. The ids from 256 on are the special tokens. The
    last special token ends a turn."""

    def __init__(self, special: Sequence[str] = ()) -> None:
        literals = [literal for literal in dict.fromkeys(special) if literal != END]
        self.special = {literal: 256 + n for n, literal in enumerate([*literals, END])}
        self._literals = {token: literal for literal, token in self.special.items()}
        longest_first = sorted(self.special, key=len, reverse=True)
        self._pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset({self.special[END]})

    @property
    def size(self) -> int:
        return 256 + len(self.special)

    def split(self, text: str) -> list[str]:
        """Split a text before and after each special token."""
        return self._pattern.split(text)

    def encode(self, text: str, *, special: bool) -> list[int]:
        if not special:
            return list(text.encode())
        ids: list[int] = []
        for piece in self.split(text):
            token = self.special.get(piece)
            ids.extend(piece.encode() if token is None else (token,))
        return ids

    def piece(self, token: int) -> bytes:
        if 0 <= token < 256:
            return bytes((token,))
        return self._literals.get(token, "").encode()
