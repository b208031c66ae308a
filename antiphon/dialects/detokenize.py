"""Tokens become text as soon as it is text: a character cut between tokens waits for its end.

It also remembers which text came from which token.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Mapping

from antiphon.tokens import Tokenizer, TokenLogprob
from antiphon.wire.items import Logprob, TopLogprob

__all__ = ["Detokenizer", "Origins", "wire_logprob"]


class Detokenizer:
    """One stream of tokens. Bytes that are no UTF-8 become replacement characters.

    ``marks``: what stands for a special token in the text; "" for those that are never text.
    """

    def __init__(self, tokenizer: Tokenizer, marks: Mapping[int, str]) -> None:
        self._piece = tokenizer.piece
        self._marks = marks
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def feed(self, token: int) -> str:
        """The text that is whole with this token."""
        mark = self._marks.get(token)
        return self._decode(self._piece(token)) if mark is None else self.finish() + mark

    def finish(self) -> str:
        """What was cut: at most one replacement character."""
        return self._decode(b"", True)


class Origins:
    """Which tokens a stretch of text came from. Positions count characters from the beginning."""

    def __init__(self) -> None:
        self._tokens: deque[tuple[int, int, TokenLogprob | None]] = deque()
        self._length = 0

    def add(self, length: int, logprob: TokenLogprob | None) -> None:
        """A token gave that much text; none yet, if its bytes begin a character."""
        self._tokens.append((self._length, self._length + max(length, 1), logprob))
        self._length += length

    def take(self, start: int, end: int) -> list[TokenLogprob | None]:
        """The tokens with text between the positions. Each is given once, with its first text
        that is asked for; ``start`` may only grow, and tokens wholly before it are forgotten."""
        found: list[TokenLogprob | None] = []
        tokens = self._tokens
        while tokens and tokens[0][0] < end:
            _, over, logprob = tokens.popleft()
            if over > start:
                found.append(logprob)
        return found


def wire_logprob(tokenizer: Tokenizer, found: TokenLogprob) -> Logprob:
    """How a token's log-probability stands on the wire."""
    piece = tokenizer.piece(found.id)
    return Logprob(
        token=piece.decode("utf-8", "replace"),
        bytes=tuple(piece),
        logprob=found.logprob,
        top_logprobs=tuple(
            TopLogprob(token=other.decode("utf-8", "replace"), bytes=tuple(other), logprob=p)
            for other, p in ((tokenizer.piece(top.id), top.logprob) for top in found.top)
        ),
    )
