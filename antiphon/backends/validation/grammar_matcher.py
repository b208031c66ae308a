"""Match a text to a grammar while the text streams.

Schemas and grammars come from clients, and a malicious client can make a check take very long. So
expensive checks run in a separate process (``validator_worker``).
"""

from __future__ import annotations

import time
from functools import cache, lru_cache, partial
from typing import Any

from antiphon.support.fair_limiter import FairLimiter

from .schema_validator import match_fault_in_process

#: CPU seconds that matching a text may take in this process: a fixed amount, plus an amount per
#: byte. Most bytes take a fortieth of the amount per byte.
_CPU_BUDGET_S, _CPU_PER_BYTE_S = 0.02, 20e-6
_BLOCK_BYTES = 64
_CACHE_SIZE = 64
#: Processes that check texts for one model at a time.
_MAX_PROCESSES = 2


class GrammarCache:
    """Cache of the compiled grammars that were used last, because compiling a grammar takes about a
    thousand times as long as starting a match. ``get`` returns the compiled grammar for a Lark
    grammar. ``turns``: limits the processes that do expensive checks."""

    def __init__(self) -> None:
        self.turns = FairLimiter(_MAX_PROCESSES)
        self.get = lru_cache(_CACHE_SIZE)(partial(Grammar, turns=self.turns))


@cache
def _byte_tokenizer() -> Any:
    """Return a tokenizer whose tokens are the single bytes, so that text can be matched byte by
    byte."""
    import llguidance

    return llguidance.LLTokenizer("byte")


class Grammar:
    """A compiled grammar. ``lark``: its source, in llguidance's dialect of Lark. ``turns``: see
    ``GrammarCache``."""

    def __init__(self, lark: str, turns: FairLimiter) -> None:
        tokenizer = _byte_tokenizer()
        import llguidance

        self.lark = lark
        self._turns = turns
        source = llguidance.grammar_from("lark", lark)
        self._initial_matcher = llguidance.LLMatcher(tokenizer, source, log_level=0)
        #: Whether llguidance could not compile the grammar.
        self.is_broken = bool(self._initial_matcher.is_error())

    def matcher(self) -> GrammarMatcher:
        """Return a matcher for a new text."""
        return GrammarMatcher(self.lark, self._initial_matcher.deep_copy(), self._turns)


class GrammarMatcher:
    """Matches one text to a grammar while the text streams."""

    def __init__(self, lark: str, matcher: Any, turns: FairLimiter) -> None:
        self._lark = lark
        self._turns = turns
        self._matcher = matcher
        self._texts: list[str] = []
        self._cpu_budget_s = _CPU_BUDGET_S
        #: Bytes whose CPU time was not measured. Measuring each small piece would be expensive.
        self._unmeasured_bytes = 0
        #: Whether the CPU budget is used up or a limit of llguidance is exceeded. Then the text is
        #: matched only in a separate process.
        self._is_expensive = False
        #: The next check is due when the text has this number of pieces.
        self._next_check = 0

    def feed(self, text: str) -> bool:
        """Add text. Return False if it is certain that no continuation can make the text match."""
        self._texts.append(text)
        left = text.encode("utf-8", "replace")
        for start in range(0, len(left), _BLOCK_BYTES):
            if self._is_expensive:
                break
            if not self._consume(left[start : start + _BLOCK_BYTES]):
                return False
        return True

    def _consume(self, block: bytes) -> bool:
        self._unmeasured_bytes += len(block)
        is_measured = self._unmeasured_bytes >= _BLOCK_BYTES
        start = time.thread_time() if is_measured else 0.0
        consumed = self._matcher.try_consume_tokens(list(block))
        if is_measured:
            cpu_per_byte_s = (time.thread_time() - start) / len(block)
            self._cpu_budget_s += self._unmeasured_bytes * (_CPU_PER_BYTE_S - cpu_per_byte_s)
            self._unmeasured_bytes = 0
        self._is_expensive = self._cpu_budget_s < 0 or self._matcher.is_error()
        return self._is_expensive or bool(consumed == len(block))

    @property
    def text(self) -> str:
        """The whole text so far."""
        return "".join(self._texts)

    @property
    def is_check_due(self) -> bool:
        """Whether ``check_prefix`` must be called now.

        False while ``feed`` can match the text cheaply in this process. When matching becomes too
        expensive, ``feed`` stops matching, and a call of ``check_prefix`` is due. The next call is
        due when the text has 1.5 times as many pieces as at the last call.
        """
        return self._is_expensive and len(self._texts) >= self._next_check

    async def check_prefix(self) -> bool:
        """Match the whole text so far in a separate process. Return False if no continuation can
        make the text match."""
        self._next_check = len(self._texts) * 3 // 2
        return await self._fault_in_process(whole=False) is None

    async def finish(self) -> bool:
        """Return whether the whole text matches the grammar."""
        if self._is_expensive:
            return await self._fault_in_process(whole=True) is None
        return bool(self._matcher.is_accepting())

    async def _fault_in_process(self, *, whole: bool) -> str | None:
        text = self.text.encode("utf-8", "replace").decode()
        return await match_fault_in_process(self._lark, text, self._turns, whole=whole)
