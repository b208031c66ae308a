"""Decode tokens to text as early as possible, and record which text came from which token.

A character whose bytes are split between tokens is decoded when its last byte arrives.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Mapping

from antiphon.inference.tokens import Tokenizer, TokenLogprob
from antiphon.wire.items import Logprob, TopLogprob


class Detokenizer:
    """Decodes one stream of tokens to text. Bytes that are not UTF-8 become replacement characters.

    - ``marks``: id of a special token → the text that stands for it. The text is ``""`` for a
      special token that is never part of the output's text.
    - ``text_cache``: token id → text, for tokens that consist of whole characters. All replies of
      one model share this cache.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        marks: Mapping[int, str],
        text_cache: dict[int, str] | None = None,
    ) -> None:
        self._piece = tokenizer.piece
        self._marks = marks
        self._text_cache = {} if text_cache is None else text_cache
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_cut = False

    def feed(self, token: int) -> str:
        """Decode one token. Returns the text that it completes."""
        if self._is_cut:
            return self._decode(token)
        text = self._text_cache.get(token)
        if text is None:
            text = self._decode(token)
            if not self._is_cut:
                self._text_cache[token] = text
        return text

    def _decode(self, token: int) -> str:
        mark = self._marks.get(token)
        if mark is not None:
            return self.finish() + mark
        text = self._decoder.decode(self._piece(token))
        self._is_cut = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """Return the text of a character whose last bytes never came: one replacement character.
        Returns ``""`` if no character is incomplete."""
        self._is_cut = False
        return self._decoder.decode(b"", True)


class TokenOrigins:
    """Maps ranges of a reply's text to the tokens that they came from. Positions count characters
    from the start of the reply."""

    def __init__(self) -> None:
        #: The tokens that ``take`` has not returned yet: text start, text end, log probability.
        self.pending: deque[tuple[int, int, TokenLogprob | None]] = deque()

    def add(self, start: int, length: int, logprob: TokenLogprob | None) -> None:
        """Add a token and the range of its text. ``start``: the position where the text starts.
        ``length``: the length of the text. If the token's bytes are only the first part of a
        character, the length is 0."""
        self.pending.append((start, start + (length or 1), logprob))

    def take(self, start: int, end: int) -> list[TokenLogprob | None]:
        """Return the log probabilities of the tokens that have text between two positions, and
        remove these tokens. For a token without log probability, the value is None.

        If the text of a token continues after ``end``, the token is returned now and not again
        later. Tokens whose text ends before ``start`` are removed and not returned. ``start`` must
        not decrease from call to call.
        """
        found: list[TokenLogprob | None] = []
        tokens = self.pending
        while tokens and tokens[0][0] < end:
            _, over, logprob = tokens.popleft()
            if over > start:
                found.append(logprob)
        return found


def wire_logprob(
    tokenizer: Tokenizer, logprob: TokenLogprob, *, token_ids: bool = False
) -> Logprob:
    """Convert a token's log probability to the type that the API sends. ``token_ids``: whether a
    token is shown by its id, such as ``token_id:42``, and not by its text."""

    def shown(id: int, piece: bytes) -> str:
        return f"token_id:{id}" if token_ids else piece.decode("utf-8", "replace")

    piece = tokenizer.piece(logprob.id)
    return Logprob(
        token=shown(logprob.id, piece),
        bytes=tuple(piece),
        logprob=logprob.logprob,
        top_logprobs=tuple(
            TopLogprob(token=shown(top.id, other), bytes=tuple(other), logprob=top.logprob)
            for top, other in ((top, tokenizer.piece(top.id)) for top in logprob.top)
        ),
    )
