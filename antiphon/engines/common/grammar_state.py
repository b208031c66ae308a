"""Track the state of a grammar while an interrupted reply is continued.

Engines apply a grammar from the first token of a request. An interrupted reply, however, continues
in the middle of its grammar. So the engine samples the rest of the reply without the grammar, and
this module matches the sampled tokens to the grammar.

If a token does not match, the engine samples this one token again, only from the matching tokens.
The distribution of the text is then the same as without an interruption. With greedy sampling, the
text is the same.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from antiphon.dialects.grammar.json_schema import short_grammar_fault
from antiphon.engines.base import Sampling
from antiphon.inference.tokens import Tokenizer

__all__ = ["GrammarState", "GrammarTracker"]

#: The strongest bias that servers accept.
_BIAS = 100.0


class GrammarTracker:
    """Creates a ``GrammarState`` for each interrupted reply of one model, so that the reply can be
    continued. ``tokenizer``: the tokenizer of this model."""

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
        """Return the state of the grammar ``lark`` after the sampled ids.

        ``end_ids``: ids that may end the output once it matches the whole grammar. Returns None if
        the ids do not match the grammar, if the grammar cannot be compiled, if llguidance is not
        installed, or if the tokenizer has no end ids. The first call takes up to a second, so call
        this method on a worker thread.
        """
        if importlib.util.find_spec("llguidance") is None or not self._tokenizer.end_ids:
            return None
        # A server that does not use llguidance accepts grammars that were never compiled here.
        if short_grammar_fault(lark) is not None:
            return None
        import llguidance

        grammar = llguidance.grammar_from("lark", lark)
        matcher = llguidance.LLMatcher(self._vocabulary, grammar, log_level=0)
        state = GrammarState(matcher, end_ids, self._tokenizer.size)
        return state if state.accept(sampled) == len(sampled) else None


class GrammarState:
    """The state of the grammar of one reply: which tokens may come next.

    ``matcher``: an ``llguidance.LLMatcher``. ``end_ids``: ids that may end the output once it
    matches the whole grammar. ``size``: number of ids in the vocabulary.
    """

    def __init__(self, matcher: Any, end_ids: Collection[int], size: int) -> None:
        self._matcher = matcher
        self._end_ids = end_ids
        self._size = size

    def accept(self, ids: Sequence[int]) -> int:
        """Advance the state over sampled ids, up to the first id that does not match. Return the
        number of ids that match. An end id matches where the grammar allows the output to end."""
        for count, id in enumerate(ids):
            is_end = id in self._end_ids and self.may_end
            if not self._matcher.try_consume_tokens([id]) and not is_end:
                return count
        return len(ids)

    def match(self, ids: Sequence[int], reason: str | None) -> tuple[int, bool]:
        """Advance the state over sampled ids, up to the first id that does not match. If the engine
        ends the output after these ids, check whether the grammar allows this.

        ``reason``: the engine's finish reason after these ids, or None. Returns the number of ids
        that match, and whether the grammar rejects the output. The grammar rejects the output in
        two cases:

        - An id does not match.
        - The engine ends the output, but the grammar requires more text.
        """
        count = self.accept(ids)
        has_end = count > 0 and ids[count - 1] in self._end_ids
        if count < len(ids) or reason != "stop" or has_end:
            return count, count < len(ids)
        return count, not self.may_end

    def mask(self, sampling: Sampling) -> Sampling:
        """Return a copy of ``sampling`` for a request of one token. The ``logit_bias`` of the copy
        allows only the tokens that the grammar allows next."""
        given = sampling.logit_bias
        bias = {id: each + given.get(id, 0) for id, each in self.bias().items()}
        return replace(sampling, max_tokens=1, logit_bias={**given, **bias})

    @property
    def may_end(self) -> bool:
        """Whether the grammar allows the output to end in this state."""
        return bool(self._matcher.is_accepting())

    def bias(self) -> dict[int, float]:
        """Return a ``logit_bias`` that allows only the ids that the grammar allows next.

        The bias either raises the allowed ids or lowers all other ids, whichever needs fewer
        entries.
        """
        mask = self._matcher.compute_bitmask()
        allowed = [id for id in range(self._size) if mask[id >> 3] >> (id & 7) & 1]
        if len(allowed) * 2 <= self._size:
            return dict.fromkeys(allowed, _BIAS)
        return dict.fromkeys(set(range(self._size)).difference(allowed), -_BIAS)


class _Vocabulary:
    """A tokenizer with the interface that llguidance expects."""

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
