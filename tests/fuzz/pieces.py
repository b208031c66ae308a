"""A tokenizer with tokens of several characters, as the vocabularies of models have them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property

from antiphon.testing.tokenizer import ByteTokenizer

_PIECES, _MIN_BYTES, _MAX_BYTES = 3_000, 2, 8


class PieceTokenizer(ByteTokenizer):
    """A ``ByteTokenizer`` with additional tokens: pieces of ``texts``.

    Pieces begin and end anywhere: inside of words, of markup and of characters. ``encode`` does not
    use them, ``encode_pieces`` does.
    """

    def __init__(self, special: Sequence[str], texts: Sequence[str]) -> None:
        super().__init__(special)
        self._texts = texts

    @cached_property
    def _pieces(self) -> Mapping[bytes, int]:
        rng = random.Random("\0".join(self._texts))
        contents = [text.encode() for text in self._texts]
        pieces: dict[bytes, int] = {}
        for content in rng.choices(contents, [len(each) for each in contents], k=_PIECES):
            at = rng.randrange(len(content))
            piece = content[at : at + rng.randint(_MIN_BYTES, _MAX_BYTES)]
            pieces.setdefault(piece, self.size + len(pieces))
        return pieces

    @cached_property
    def _contents(self) -> Mapping[int, bytes]:
        return {token: piece for piece, token in self._pieces.items()}

    def encode_pieces(self, text: str) -> list[int]:
        """Return the tokens of a text: at each place the longest piece, or a byte."""
        ids: list[int] = []
        for part in self.split(text):
            token = self.special.get(part)
            ids.extend(self._encode_part(part.encode()) if token is None else (token,))
        return ids

    def _encode_part(self, content: bytes) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(content):
            for length in range(_MAX_BYTES, 0, -1):
                token = self._pieces.get(content[at : at + length])
                if token is not None:
                    break
            else:
                token, length = content[at], 1
            ids.append(token)
            at += length
        return ids

    def piece(self, token: int) -> bytes:
        return super().piece(token) if token < self.size else self._contents[token]
