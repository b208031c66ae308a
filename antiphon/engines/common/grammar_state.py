"""Track the state of a grammar outside the engine: to continue an interrupted reply, or because
the grammar is too costly for the engine's loop.

Engines apply a grammar from the first token of a request. An interrupted reply, however, continues
in the middle of its grammar. So the engine samples the rest of the reply without the grammar, and
this module matches the sampled tokens to the grammar.

If a token does not match, the engine samples this one token again, only from the matching tokens.
The distribution of the text is then the same as without an interruption. With greedy sampling, the
text is the same.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any

from msgspec.structs import replace

from antiphon.dialects.grammar.json_schema import short_grammar_fault
from antiphon.engines.base import Sampling
from antiphon.errors import BackendError
from antiphon.inference.tokens import Tokenizer
from antiphon.support.fair_limiter import FairLimiter

#: The strongest bias that servers accept.
_BIAS = 100.0
#: CPU seconds that one reply may spend on its grammar outside the engine.
_BUDGET_S = 10.0
#: Compiled grammars that are kept. The same tools or schema come with each turn of a conversation.
_CACHE_SIZE = 64


class GrammarTracker:
    """Creates a ``GrammarState`` for each reply of one model whose grammar is tracked.

    ``tokenizer``: the tokenizer of this model. ``turns``: the work on costly states is done one
    piece at a time, and tenants take turns.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.turns = FairLimiter(1)
        # Not a method of the tracker: the cycle would keep the vocabulary of an unloaded model.
        self._compiled = lru_cache(_CACHE_SIZE)(_Compiler(tokenizer).compile)

    def start(
        self, lark: str, sampled: Sequence[int], end_ids: Collection[int]
    ) -> GrammarState | None:
        """Return the state of the grammar ``lark`` after the sampled ids.

        ``end_ids``: ids that may end the output once it matches the whole grammar. Returns None if
        the ids do not match the grammar, if the grammar cannot be compiled, or if the tokenizer has
        no end ids. The first call takes up to a second, so call this method on a worker thread.
        """
        if not self._tokenizer.end_ids:
            return None
        # A server that does not use llguidance accepts grammars that were never compiled here.
        if short_grammar_fault(lark) is not None:
            return None
        matcher, seconds = self._compiled(lark)
        state = GrammarState(matcher.deep_copy(), end_ids, self._tokenizer.size, seconds)
        return state if state.accept(sampled) == len(sampled) else None


class _Compiler:
    """Compiles grammars for the vocabulary of one model."""

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

    def compile(self, lark: str) -> tuple[Any, float]:
        """Return the matcher of a grammar in its first state, and the CPU seconds that it took."""
        import llguidance

        vocabulary, start = self._vocabulary, time.thread_time()
        grammar = llguidance.grammar_from("lark", lark)
        matcher = llguidance.LLMatcher(vocabulary, grammar, log_level=0)
        return matcher, time.thread_time() - start


class GrammarState:
    """The state of the grammar of one reply: which tokens may come next.

    ``matcher``: an ``llguidance.LLMatcher``. ``end_ids``: ids that may end the output once it
    matches the whole grammar. ``size``: number of ids in the vocabulary. ``spent_s``: CPU seconds
    that the grammar has taken so far, first the seconds of its compilation. Use a state on one
    thread at a time.
    """

    def __init__(
        self, matcher: Any, end_ids: Collection[int], size: int, spent_s: float = 0.0
    ) -> None:
        self._matcher = matcher
        self._end_ids = end_ids
        self._size = size
        self.spent_s = spent_s

    def check_budget(self) -> None:
        """Raise ``BackendError`` if the grammar has exceeded its CPU time, or one of llguidance's
        limits, so that it is no longer known which tokens match."""
        if self.spent_s > _BUDGET_S or self.is_broken:
            raise grammar_too_costly()

    @property
    def is_broken(self) -> bool:
        """Whether the grammar has exceeded one of llguidance's limits."""
        return bool(self._matcher.is_error())

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Add the CPU time of the block to ``spent_s``."""
        start = time.thread_time()
        try:
            yield
        finally:
            self.spent_s += time.thread_time() - start

    def accept(self, ids: Sequence[int]) -> int:
        """Advance the state over sampled ids, up to the first id that does not match. Return the
        number of ids that match. An end id matches where the grammar allows the output to end."""
        with self._measured():
            for count, id in enumerate(ids):
                if not self._matcher.try_consume_tokens([id]) and not self._accept_end(id):
                    return count
        return len(ids)

    def _accept_end(self, id: int) -> bool:
        """Return whether an id may end the output here. A grammar may contain the end id itself, as
        that of a call of gpt-oss does. ``try_consume_tokens`` matches no end id."""
        if id not in self._end_ids or self.may_end:
            return id in self._end_ids
        mask = self._matcher.compute_bitmask()
        return bool(mask[id >> 3] >> (id & 7) & 1 and self._matcher.consume_token(id))

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

    def forbidden_tokens(self, size: int) -> Any:
        """Return a numpy array with one bool for each of the ``size`` logits of a model: True if
        the token may not come next. A model may have more logits than tokens. Raises
        ``BackendError`` if the grammar has exceeded its limits."""
        import numpy

        mask = numpy.frombuffer(self._mask(), dtype=numpy.uint8)
        self.check_budget()
        return numpy.unpackbits(mask, count=size, bitorder="little") == 0

    def measure(self, ids: Sequence[int]) -> int:
        """Advance the state as ``accept`` does, and add to ``spent_s`` what an engine needs that
        computes a mask after each of the ids. Return the number of ids that match."""
        count, before = self.accept(ids), self.spent_s
        self._mask()
        self.spent_s += (self.spent_s - before) * max(0, len(ids) - 1)
        return count

    def _mask(self) -> bytes:
        with self._measured():
            mask: bytes = self._matcher.compute_bitmask()
        return mask

    def bias(self) -> dict[int, float]:
        """Return a ``logit_bias`` that allows only the ids that the grammar allows next.

        The bias either raises the allowed ids or lowers all other ids, whichever needs fewer
        entries.
        """
        mask = self._mask()
        allowed = [id for id in range(self._size) if mask[id >> 3] >> (id & 7) & 1]
        if len(allowed) * 2 <= self._size:
            return dict.fromkeys(allowed, _BIAS)
        return dict.fromkeys(set(range(self._size)).difference(allowed), -_BIAS)


def grammar_too_costly() -> BackendError:
    """Return the error for a grammar that took too much CPU time."""
    return BackendError(
        "The grammar or schema of the request is too costly to apply to this output. Make its rules"
        " less ambiguous.",
        code="invalid_grammar",
        permanent=True,
    )


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
