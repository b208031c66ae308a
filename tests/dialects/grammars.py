"""Checks with llguidance what a grammar lets a model write, over the byte tokenizer."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from functools import cache

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

from antiphon.inference.tokens import Constraint
from antiphon.testing.tokenizer import END, ByteTokenizer


class _Vocabulary:
    """The tokens in llguidance's form, with control tokens marked."""

    bos_token_id = None

    def __init__(self, tokenizer: ByteTokenizer, end: str, textual: Collection[str]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.special[end]
        self.tokens = [bytes((n,)) for n in range(256)]
        self.tokens += [literal.encode() for literal in tokenizer.special]
        self.special_token_ids = sorted(
            id for literal, id in tokenizer.special.items() if literal not in textual
        )

    def __call__(self, text: str | bytes) -> list[int]:
        spelled = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._tokenizer.encode(spelled, special=False)


class ConstrainedWriter:
    """Writes, or checks, text under a constraint.

    ``end``: the token that ends a text. ``textual``: special tokens that count as text.
    """

    def __init__(
        self,
        tokenizer: ByteTokenizer,
        constraint: Constraint | None,
        end: str = END,
        textual: Collection[str] = (),
    ) -> None:
        assert constraint is not None
        self._tokenizer = tokenizer
        vocabulary = _vocabulary(tuple(tokenizer.special), end, tuple(textual))
        self._start = LLMatcher(vocabulary, grammar_from("lark", constraint.lark), log_level=0)
        assert not self._start.is_error(), f"{self._start.get_error()}\n{constraint.lark}"

    def may_write(self, text: str) -> bool:
        """Return whether a model may write exactly ``text``."""
        matcher = self._matcher()
        ids = self._tokenizer.encode(text, special=True)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def may_begin(self, text: str) -> bool:
        """Return whether a model may start with ``text``."""
        ids = self._tokenizer.encode(text, special=True)
        return self._matcher().try_consume_tokens(ids) == len(ids)

    def longest(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the longest prefix of ``ids`` after which a model may stop."""
        matcher = self._matcher()
        most = 0
        for count, id in enumerate(ids):
            most = count if matcher.is_accepting() else most
            if matcher.is_stopped() or not matcher.try_consume_tokens([id]):
                return ids[:most]
        return ids if matcher.is_accepting() else ids[:most]

    def written(self, dice: random.Random, most: int = 2_000) -> list[int]:
        """Return random tokens that a model may write, until it must stop.

        Special tokens and the signs of JSON are more likely than letters.
        """
        matcher = self._matcher()
        ids: list[int] = []
        while len(ids) < most and not matcher.is_stopped():
            allowed = [id for id, bias in enumerate(matcher.compute_logit_bias()) if bias]
            special = [id for id in allowed if id >= 256]
            signs = [id for id in allowed if id in tuple(b'",:<|>\n')]
            letters = [id for id in allowed if 32 <= id < 127]
            kinds = [kind for kind in (special, signs, letters) if kind] or [allowed]
            ids.append(dice.choice(dice.choice(kinds)))
            assert matcher.consume_token(ids[-1]), matcher.get_error()
        assert matcher.is_accepting()
        return ids

    def _matcher(self) -> LLMatcher:
        """Return a matcher at the start. A copy shares what is compiled."""
        return self._start.deep_copy()


@cache
def _vocabulary(special: tuple[str, ...], end: str, textual: tuple[str, ...]) -> LLTokenizer:
    """Return the vocabulary of a tokenizer, built once for all tests."""
    return LLTokenizer(TokenizerWrapper(_Vocabulary(ByteTokenizer(special), end, textual)))


def matches(lark: str, text: str) -> bool:
    """Return whether a grammar in llguidance's Lark matches all of ``text``."""
    matcher = LLMatcher(LLTokenizer("byte"), grammar_from("lark", lark), log_level=0)
    assert not matcher.is_error(), f"{matcher.get_error()}\n{lark}"
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
