"""Which texts a grammar allows, told piece by piece as they come: what judges answers and calls.

It knows no request and no model. What would take long, and could be made to, is told by a process
of its own (``judge``).
"""

from __future__ import annotations

import time
from functools import cached_property, lru_cache
from typing import Any

from antiphon.errors import SetupError

from .schema_validator import grammar_fault

__all__ = ["Grammar", "GrammarCache", "GrammarMatcher"]

#: CPU that a text may take here: to begin with, and a byte, of which most take a fortieth.
_ALLOWED_S, _A_BYTE_S = 0.02, 20e-6
_BLOCK = 64
_MOST_KEPT = 64


class GrammarCache:
    """Grammars that were asked for of late: to read one takes a thousand times as long as to begin
    with it."""

    def __init__(self) -> None:
        self.of = lru_cache(_MOST_KEPT)(self._read)

    def _read(self, lark: str) -> Grammar:
        return Grammar(lark, self._bytes)

    @cached_property
    def _bytes(self) -> Any:
        """A vocabulary of bytes."""
        try:
            import llguidance
        except ImportError:
            raise SetupError('llguidance is not installed: pip install "antiphon[llama]"') from None
        return llguidance.LLTokenizer("byte")


class Grammar:
    """A grammar in llguidance's Lark, ready to be begun with."""

    def __init__(self, lark: str, bytes_: Any) -> None:
        import llguidance

        self.lark = lark
        source = llguidance.grammar_from("lark", lark)
        self._first = llguidance.LLMatcher(bytes_, source, log_level=0)
        #: It is none that the library knows.
        self.is_broken = bool(self._first.is_error())

    def follow(self) -> GrammarMatcher:
        """A text that begins."""
        return GrammarMatcher(self.lark, self._first.deep_copy())


class GrammarMatcher:
    """One text as it comes."""

    def __init__(self, lark: str, matcher: Any) -> None:
        self._lark = lark
        self._matcher = matcher
        self._said: list[str] = []
        self._left_s = _ALLOWED_S
        #: Bytes of which it was not looked at what they took: that is not for nothing.
        self._unmeasured = 0
        #: It takes too long, or more than the library allows itself.
        self._is_hard = False
        #: So long a text is to be looked at apart.
        self._due = 0

    def feed(self, text: str) -> bool:
        """False: nothing that could follow would make it right."""
        self._said.append(text)
        left = text.encode("utf-8", "replace")
        for start in range(0, len(left), _BLOCK):
            if self._is_hard:
                break
            if not self._takes(left[start : start + _BLOCK]):
                return False
        return True

    def _takes(self, block: bytes) -> bool:
        self._unmeasured += len(block)
        is_measured = self._unmeasured >= _BLOCK
        begun = time.thread_time() if is_measured else 0.0
        taken = self._matcher.try_consume_tokens(list(block))
        if is_measured:
            a_byte_s = (time.thread_time() - begun) / len(block)
            self._left_s += self._unmeasured * (_A_BYTE_S - a_byte_s)
            self._unmeasured = 0
        self._is_hard = self._left_s < 0 or self._matcher.is_error()
        return self._is_hard or bool(taken == len(block))

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self._said)

    @property
    def is_due(self) -> bool:
        """``begins`` is to be asked: whenever half as much again has come."""
        return self._is_hard and len(self._said) >= self._due

    async def check_prefix(self) -> bool:
        """The same as ``more``, of all so far, where it is hard to tell."""
        self._due = len(self._said) * 3 // 2
        return await self._fault_apart(whole=False) is None

    async def finish(self) -> bool:
        """Whether it may end here."""
        if self._is_hard:
            return await self._fault_apart(whole=True) is None
        return bool(self._matcher.is_accepting())

    async def _fault_apart(self, *, whole: bool) -> str | None:
        text = self.text.encode("utf-8", "replace").decode()
        return await grammar_fault(self._lark, text, whole=whole)
