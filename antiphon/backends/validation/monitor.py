"""A reply that somebody holds to what was asked, judged as it comes: what is wrong is told as soon
as that is certain. It knows no model and no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from antiphon.stream.deltas import Close, Delta, Finish, Open, SampledTokens, Text
from antiphon.wire.items import CustomToolCall, FunctionCall, Message, Reasoning

from .answer_format import AnswerFormat, FormatMatcher
from .tool_calls import ToolCallRules

__all__ = ["StreamValidator", "is_answer", "is_call"]


class StreamValidator:
    """Judges one reply. ``form``: of the answer, ``calls``: which may be made; ``talks``: words may
    stand beside calls, of which no form is asked; ``stops``: a stop string may have ended it, and
    nobody tells."""

    def __init__(
        self,
        form: AnswerFormat | None,
        calls: ToolCallRules | None,
        *,
        talks: bool,
        stops: bool = False,
    ) -> None:
        self._form = form
        self._calls = calls
        self._talks = talks
        #: The open item, if it must be right.
        self._coming: FormatMatcher | None = None
        self._is_call = False
        self._fault: str | None = None
        #: What is wrong with words, unless they stand beside a call.
        self._unless_called: str | None = None
        self._has_answered = self._has_called = False
        self._is_cut = stops
        #: An item has begun of which nothing has been said.
        self.waits = False

    @property
    def is_idle(self) -> bool:
        """There is nothing to judge."""
        return self._form is None and self._calls is None

    @property
    def has_begun(self) -> bool:
        """An answer or a call has."""
        return self._has_answered or self._has_called

    def accept_text(self, known: Sequence[Delta]) -> bool:
        """Whether this is nothing but more of an item, and right so far, as nearly all is."""
        more = known[-1] if known else None
        if not isinstance(more, Text) or self.waits or self._is_due:
            return False
        if len(known) > 2 or (len(known) == 2 and not isinstance(known[0], SampledTokens)):
            return False
        self._says(more)
        return self._fault is None

    @property
    def _is_due(self) -> bool:
        return self._coming is not None and self._coming.is_due

    async def fault(self, known: Sequence[Delta]) -> str | None:
        """What is wrong with what came together, if something is. What a stop string cut need only
        have begun right."""
        last = known[-1] if known else None
        if isinstance(last, Finish):
            self._is_cut = self._is_cut or last.stopped_by_string
            if last.reason != "stop":
                self.waits = False
                return None
        for delta in known:
            if isinstance(delta, Text):
                self._says(delta)
                if self._coming is not None and self._coming.is_due:
                    self._wrong(await self._coming.check_prefix())
            elif isinstance(delta, Open | Close | Finish):
                await self._ends()
                if isinstance(delta, Open):
                    self._begins(delta)
                elif isinstance(delta, Finish):
                    await self._finishes()
        return self._fault

    def _begins(self, delta: Open) -> None:
        item = delta.item
        self._is_call = is_call(delta)
        if self._is_call:
            self._has_called = True
            if self._calls is not None and isinstance(item, FunctionCall | CustomToolCall):
                self._wrong(self._calls.rejection(item))
                self._follow(self._calls.form(item))
        elif is_answer(delta):
            self._has_answered = True
            self._follow(self._form)
        self.waits = self._coming is not None

    def _follow(self, form: AnswerFormat | None) -> None:
        self._coming = None if form is None else FormatMatcher(form)

    def _says(self, delta: Text) -> None:
        self.waits = False
        if delta.channel == "refusal":
            self._coming = None
        if self._coming is not None:
            self._wrong(self._coming.feed(delta.text))

    async def _ends(self) -> None:
        coming, self._coming, self.waits = self._coming, None, False
        if coming is not None and not (self._fault or self._is_cut):
            self._wrong(await coming.finish())

    async def _finishes(self) -> None:
        if self._has_called or self._is_cut:
            return
        self._fault = self._fault or self._unless_called
        if self._calls is not None and self._calls.required:
            self._fault = "no tool was called."
        elif self._form is not None and not self._has_answered:
            self._fault = await FormatMatcher(self._form).finish()

    def _wrong(self, fault: str | None) -> None:
        if fault is None:
            return
        self._coming = None
        if self._talks and not self._is_call:
            self._unless_called = fault
        else:
            self._fault = self._fault or fault


def is_answer(delta: Delta) -> TypeGuard[Open]:
    """A message begins that is to have the form: what a model says by the way has none."""
    return (
        isinstance(delta, Open)
        and isinstance(delta.item, Message)
        and delta.item.phase != "commentary"
    )


def is_call(delta: Delta) -> TypeGuard[Open]:
    return isinstance(delta, Open) and not isinstance(delta.item, Message | Reasoning)
