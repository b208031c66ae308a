"""Asking llguidance what a grammar lets a model write, over the byte tokenizer."""

from __future__ import annotations

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

from antiphon.testing.tokenizer import END, ByteTokenizer
from antiphon.tokens import Constraint

__all__ = ["Held"]


class _Vocabulary:
    """The tokens as llguidance wants them: control tokens are marked."""

    bos_token_id = None

    def __init__(self, tokenizer: ByteTokenizer, end: str) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.special[end]
        self.tokens = [bytes((n,)) for n in range(256)]
        self.tokens += [literal.encode() for literal in tokenizer.special]
        self.special_token_ids = sorted(tokenizer.special.values())

    def __call__(self, text: str | bytes) -> list[int]:
        spelled = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._tokenizer.encode(spelled, special=False)


class Held:
    """What a model may write that is held to a grammar. ``end``: the token that ends a text."""

    def __init__(
        self, tokenizer: ByteTokenizer, constraint: Constraint | None, end: str = END
    ) -> None:
        assert constraint is not None
        self._tokenizer = tokenizer
        self._grammar = grammar_from("lark", constraint.lark)
        self._vocabulary = LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer, end)))
        fault = LLMatcher.validate_grammar(self._grammar, self._vocabulary)
        assert not fault, f"{fault}\n{constraint.lark}"

    def may_write(self, text: str) -> bool:
        """All of ``text``, and stop."""
        matcher = self._matcher()
        ids = self._tokenizer.encode(text, special=True)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def may_begin(self, text: str) -> bool:
        """``text`` as the beginning of more."""
        ids = self._tokenizer.encode(text, special=True)
        return self._matcher().try_consume_tokens(ids) == len(ids)

    def _matcher(self) -> LLMatcher:
        matcher = LLMatcher(self._vocabulary, self._grammar)
        assert not matcher.is_error(), matcher.get_error()
        return matcher
