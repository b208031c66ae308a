"""Recover token ids that llama.cpp's server withholds.

If a token ends inside a UTF-8 character, the server withholds the token. It sends the text of
withheld tokens together with the token that completes the character, but it sends only the id of
this last token. The text and the number of tokens are known, so the other ids can be derived.
Sans-IO.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from antiphon.inference.tokens import Tokenizer


class PartialTokens:
    """Derives the ids that the server withheld. ``tokenizer``: the tokenizer of the model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def recover(self, text: str, last: int, count: int) -> list[int]:
        """Return the ids of the ``count`` + 1 tokens that spell ``text``. The last of these tokens
        is ``last``. llama.cpp's server withheld the ids of the ``count`` tokens before it. The
        method tries two ways:

        1. Encode ``text`` with the tokenizer. The result is used if it has ``count`` + 1 ids and
           ends with ``last``.
        2. Search for any ``count`` ids that, together with ``last`` after them, spell ``text``.

        Both ways fail, for example, if the model wrote invalid UTF-8. Then the method returns the
        tokenizer's encoding of ``text``, although it differs from the sampled ids.
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
        """Split the bytes ``spelled`` into ``count`` tokens. Return the ids of the tokens, or None
        if there is no such split. The search uses only tokens whose bytes are not valid UTF-8,
        because llama.cpp's server withholds the ids of such tokens only. The search tries longer
        tokens first."""
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
        """The tokens whose bytes are not valid UTF-8: the bytes of the token → its id. The mapping
        is built only once, because building it takes a pass over the vocabulary."""
        partial: dict[bytes, int] = {}
        for token in range(self._tokenizer.size):
            piece = self._tokenizer.piece(token)
            try:
                piece.decode()
            except UnicodeDecodeError:
                partial.setdefault(piece, token)
        return partial
