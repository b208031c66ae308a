"""The state of a grammar after tokens that were sampled before an interruption.

Engines apply a grammar from the first token of a request. A reply that continues in the middle is
therefore sampled without it and matched here. If a token does not match, one token is sampled
again, among those that match. With greedy sampling, the text is the same as without an
interruption; otherwise its distribution is the same.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from antiphon.dialects.grammar.json_schema import grammar_fault
from antiphon.engines.base import Sampling
from antiphon.tokens import Tokenizer

__all__ = ["GrammarState", "GrammarTracker"]

#: The strongest bias that servers accept.
_BIAS = 100.0


class GrammarTracker:
    """Starts the grammar states of one model's replies."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _vocabulary(self) -> Any:
        import llguidance

        tokenizer = self._tokenizer
        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Vocabulary(tokenizer)),
            n_vocab=tokenizer.size,
            eos_token=sorted(tokenizer.end_ids),
        )

    def start(
        self, lark: str, sampled: Sequence[int], end_ids: Collection[int]
    ) -> GrammarState | None:
        """Return the state behind the sampled ids. ``end_ids``: ids that end the output where it
        is complete.

        None if the ids do not match the grammar, if it cannot be compiled, or if llguidance is not
        installed. Takes up to a second the first time: call it from a thread.
        """
        if importlib.util.find_spec("llguidance") is None or not self._tokenizer.end_ids:
            return None
        # Other kinds of servers than llguidance's take grammars that were never compiled here.
        if grammar_fault(lark) is not None:
            return None
        import llguidance

        grammar = llguidance.grammar_from("lark", lark)
        matcher = llguidance.LLMatcher(self._vocabulary, grammar, log_level=0)
        state = GrammarState(matcher, end_ids, self._tokenizer.size)
        return state if state.accept(sampled) == len(sampled) else None


class GrammarState:
    """The state of one reply's grammar. ``size``: of the vocabulary."""

    def __init__(self, matcher: Any, end_ids: Collection[int], size: int) -> None:
        self._matcher = matcher
        self._end_ids = end_ids
        self._size = size

    def accept(self, ids: Sequence[int]) -> int:
        """Advance over sampled ids. Returns how many of them match."""
        for count, id in enumerate(ids):
            is_end = id in self._end_ids and self.may_end
            if not self._matcher.try_consume_tokens([id]) and not is_end:
                return count
        return len(ids)

    def match(self, ids: Sequence[int], reason: str | None) -> tuple[int, bool]:
        """Advance over sampled ids. ``reason``: why the engine ended its output there, if it did.
        Returns how many ids match, and whether the rest or the end is rejected."""
        count = self.accept(ids)
        has_end = count > 0 and ids[count - 1] in self._end_ids
        if count < len(ids) or reason != "stop" or has_end:
            return count, count < len(ids)
        return count, not self.may_end

    def mask(self, sampling: Sampling) -> Sampling:
        """The sampling of one token among those that match."""
        given = sampling.logit_bias
        bias = {id: each + given.get(id, 0) for id, each in self.bias().items()}
        return replace(sampling, max_tokens=1, logit_bias={**given, **bias})

    @property
    def may_end(self) -> bool:
        """Whether the output may end here."""
        return bool(self._matcher.is_accepting())

    def bias(self) -> dict[int, float]:
        """The ``logit_bias`` that leaves only matching ids: it prefers them, or forbids the others,
        whichever are fewer."""
        mask = self._matcher.compute_bitmask()
        allowed = [id for id in range(self._size) if mask[id >> 3] >> (id & 7) & 1]
        if len(allowed) * 2 <= self._size:
            return dict.fromkeys(allowed, _BIAS)
        return dict.fromkeys(set(range(self._size)).difference(allowed), -_BIAS)


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = {*tokenizer.special.values(), *tokenizer.end_ids}
        self.tokens = [tokenizer.piece(id) for id in range(tokenizer.size)]
        self.special_token_ids = sorted(special)
        self.eos_token_id = min(tokenizer.end_ids)
        self.bos_token_id = None
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(text, special=False)
