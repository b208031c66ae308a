"""Compute token masks from grammars with llguidance. A mask says which tokens may come next.

This is for engines that let this process change the logits before a token is sampled. To compute
the masks, only the model's ``tokenizer.json`` is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphon.errors import BackendError

#: llguidance's prefix byte for the text of a control token.
_CONTROL = 0xFF


class TokenMaskFactory:
    """Creates the token masks for one vocabulary.

    ``path``: the vocabulary's ``tokenizer.json``. ``size``: number of logits, which may exceed the
    number of tokens. ``ends``: ids that are allowed once the output matches the whole grammar.
    """

    def __init__(self, path: Path, size: int, ends: Sequence[int]) -> None:
        import llguidance

        self._size = size
        self._tokenizer: Any = llguidance.LLTokenizer(
            path.read_text(encoding="utf-8"), n_vocab=size, eos_token=list(ends)
        )

    def mask(self, lark: str) -> TokenMask:
        """Create the mask of one generation. ``lark``: a valid grammar in llguidance's Lark."""
        import llguidance

        matcher = llguidance.LLMatcher(self._tokenizer, llguidance.grammar_from("lark", lark))
        return TokenMask(matcher, self._tokenizer, self._size)


class TokenMask:
    """Tracks the grammar of one generation, and computes which tokens may come next. Not
    thread-safe.

    ``matcher``: an ``llguidance.LLMatcher`` with the state of the grammar. ``tokenizer``: an
    ``llguidance.LLTokenizer``. ``size``: number of logits.
    """

    def __init__(self, matcher: Any, tokenizer: Any, size: int) -> None:
        import numpy

        self._matcher = matcher
        self._tokenizer = tokenizer
        self._size = size
        self._bits: Any = numpy.zeros((1, (size + 31) // 32), dtype=numpy.int32)

    def forbidden_tokens(self) -> Any:
        """Return a numpy array with one bool per token id: True if the token may not come next.
        Raises ``BackendError`` if llguidance reports an error."""
        import numpy
        from llguidance.numpy import fill_next_token_bitmask

        fill_next_token_bitmask(self._matcher, self._bits)
        self._raise_on_error()
        bits = numpy.unpackbits(self._bits.view(numpy.uint8)[0], bitorder="little")
        forbidden = bits[: self._size] == 0
        if numpy.count_nonzero(self._bits) == 1:
            self._prefer_plain_token(forbidden)
        return forbidden

    def _prefer_plain_token(self, forbidden: Any) -> None:
        """Work around a bug of llguidance: if a control token is wrongly the only allowed token,
        forbid it and allow a plain text token instead.

        Where the grammar has a fixed text, llguidance allows only the token that encodes the text.
        If the text looks like a control token, llguidance allows only this control token, but
        rejects the token afterwards. ``forbidden``: the array of ``forbidden_tokens``. This method
        changes the array in place.
        """
        text = self._matcher.compute_ff_bytes()
        token = int(forbidden.argmin())
        if text and text[0] != _CONTROL and self._tokenizer.is_special_token(token):
            plain = self._tokenizer.greedy_tokenize(text.decode("utf-8", "ignore"))
            forbidden[[token, plain[0]]] = True, False

    def accept(self, token: int) -> None:
        """Advance the state of the grammar over the sampled ``token``. Raises ``BackendError`` if
        llguidance reports an error, such as a token that does not match."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
            self._raise_on_error()

    def _raise_on_error(self) -> None:
        if self._matcher.is_error():
            reason, _, _ = self._matcher.get_error().partition("\n")  # drop the dump of its state
            raise BackendError(f"The grammar failed: {reason}")
