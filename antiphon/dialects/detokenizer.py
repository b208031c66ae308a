"""Tokens become text as soon as it is text: a character cut between tokens waits for its end.

It also remembers which text came from which token.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Mapping

from antiphon.tokens import Tokenizer, TokenLogprob
from antiphon.wire.items import Logprob, TopLogprob

__all__ = ["Detokenizer", "TokenOrigins", "wire_logprob"]


class Detokenizer:
    """One stream of tokens. Bytes that are no UTF-8 become replacement characters.

    ``marks``: what stands for a special token in the text; "" for those that are never text.
    ``known``: the texts of tokens that are whole characters, as far as they have come up; shared
    by the replies of one model.
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
        """The text that is whole with this token."""
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
        """What was cut: at most one replacement character."""
        self._is_cut = False
        return self._decoder.decode(b"", True)


class TokenOrigins:
    """Which tokens a stretch of text came from. Positions count characters from the beginning."""

    def __init__(self) -> None:
        #: Those that nobody has taken: where their text begins and ends.
        self.pending: deque[tuple[int, int, TokenLogprob | None]] = deque()

    def add(self, start: int, length: int, logprob: TokenLogprob | None) -> None:
        """A token gave that much text; none yet, if its bytes begin a character."""
        self.pending.append((start, start + (length or 1), logprob))

    def take(self, start: int, end: int) -> list[TokenLogprob | None]:
        """The tokens with text between the positions. Each is given once, with its first text
        that is asked for; ``start`` may only grow, and tokens wholly before it are forgotten."""
        found: list[TokenLogprob | None] = []
        tokens = self.pending
        while tokens and tokens[0][0] < end:
            _, over, logprob = tokens.popleft()
            if over > start:
                found.append(logprob)
        return found


def wire_logprob(tokenizer: Tokenizer, logprob: TokenLogprob) -> Logprob:
    """How a token's log-probability stands on the wire."""
    piece = tokenizer.piece(logprob.id)
    return Logprob(
        token=piece.decode("utf-8", "replace"),
        bytes=tuple(piece),
        logprob=logprob.logprob,
        top_logprobs=tuple(
            TopLogprob(token=other.decode("utf-8", "replace"), bytes=tuple(other), logprob=p)
            for other, p in ((tokenizer.piece(top.id), top.logprob) for top in logprob.top)
        ),
    )
