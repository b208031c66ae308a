"""Ids that llama.cpp's server does not tell: those that end in the middle of a character.

It sends the text of such a token with the token that completes the character, and of the ids only
that one's. The text and the number of tokens are known, so the others can be told from what they
spell. Sans-IO.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from antiphon.tokens import Tokenizer

__all__ = ["PartialTokens"]


class PartialTokens:
    """Recovers the ids of one tokenizer's withheld tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def recover(self, text: str, last: int, count: int) -> list[int]:
        """The ids of ``text``, which ``count`` withheld tokens and then ``last`` spell.

        The way the tokenizer itself writes the text, where it has as many tokens; else any way
        that does. A model that wrote bytes which are no text gets the nearest text.
        """
        usual = self._tokenizer.encode(text, special=False)
        if len(usual) == count + 1 and usual[-1] == last:
            return usual
        spelled, end = text.encode(), self._tokenizer.piece(last)
        if spelled.endswith(end):
            found = self._split(spelled[: len(spelled) - len(end)], count)
            if found is not None:
                return [*found, last]
        return usual

    def _split(self, spelled: bytes, count: int) -> list[int] | None:
        """``count`` unfinished pieces that make up ``spelled``, the longest first."""
        if count == 0:
            return None if spelled else []
        for length in range(len(spelled) - count + 1, 0, -1):
            token = self._partial_pieces.get(spelled[:length])
            if token is not None:
                rest = self._split(spelled[length:], count - 1)
                if rest is not None:
                    return [token, *rest]
        return None

    @functools.cached_property
    def _partial_pieces(self) -> Mapping[bytes, int]:
        """Pieces that are no text by themselves → id. A pass over the vocabulary, once."""
        partial: dict[bytes, int] = {}
        for token in range(self._tokenizer.size):
            piece = self._tokenizer.piece(token)
            try:
                piece.decode()
            except UnicodeDecodeError:
                partial.setdefault(piece, token)
        return partial
