"""Validate a reply while it streams.

This validation is for replies of engines and upstreams that enforce the requested format. Sometimes
such a reply is invalid nevertheless. A fault is reported as soon as no continuation can make the
reply valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from antiphon.stream.deltas import Close, Delta, Finish, Open, SampledTokens, Text, finish_of
from antiphon.stream.kinds import KINDS
from antiphon.wire.items import (
    Item,
    OutputText,
    is_model_call,
)

from .answer_format import AnswerFormat, FormatMatcher
from .tool_calls import ToolCallRules


class StreamValidator:
    """Validates one reply while it streams.

    - ``answer_format``: the format that the answer must have. None allows any text.
    - ``tool_calls``: the rules for tool calls. None means no rules.
    - ``allows_text_with_calls``: True if the text of a reply with tool calls need not have the
      format.
    - ``has_stop_strings``: True if the request has stop strings, and the upstream does not report
      whether a stop string ended the reply. In this case, every reply is treated as cut off: its
      text is accepted if it is the beginning of a valid text.
    """

    def __init__(
        self,
        answer_format: AnswerFormat | None,
        tool_calls: ToolCallRules | None,
        *,
        allows_text_with_calls: bool,
        has_stop_strings: bool = False,
    ) -> None:
        self._format = answer_format
        self._tool_calls = tool_calls
        self._allows_text_with_calls = allows_text_with_calls
        #: Matches the text of the open item. None if the item needs no format.
        self._matcher: FormatMatcher | None = None
        self._is_call = False
        self._fault: str | None = None
        #: A fault of a text. It does not count if the reply also has a call.
        self._text_fault: str | None = None
        self._has_answered = self._has_called = False
        self._is_truncated = has_stop_strings
        #: Whether the open item must be validated and has no text yet.
        self.is_waiting = False

    def resume(self, done: Sequence[Item], unfinished: Sequence[Item]) -> None:
        """Restore the state of this validator for a reply that continues after an interruption.
        ``done``: the completed items of the reply. ``unfinished``: its incomplete items, with the
        text so far."""
        for item in done:
            self._note_item(Open(item))
        for item in unfinished:
            self._start_item(Open(item))
            text = _unfinished_text(item)
            if text is None:
                self._matcher = None
            elif text:
                self._add_text(Text(text))

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to validate."""
        return self._format is None and self._tool_calls is None

    @property
    def has_output(self) -> bool:
        """Whether the model has begun to write an answer or a tool call."""
        return self._has_answered or self._has_called

    def accept_text(self, deltas: Sequence[Delta]) -> bool:
        """Try to validate a batch of deltas on the fast path, which handles only batches that add
        text to the open item and nothing else.

        Returns True if the batch only adds text and the text is valid so far. In all other cases,
        this method returns False, and the caller must call ``fault`` with the same batch.
        """
        more = deltas[-1] if deltas else None
        if not isinstance(more, Text) or self.is_waiting or self._is_check_due:
            return False
        if len(deltas) > 2 or (len(deltas) == 2 and not isinstance(deltas[0], SampledTokens)):
            return False
        self._add_text(more)
        return self._fault is None

    @property
    def _is_check_due(self) -> bool:
        return self._matcher is not None and self._matcher.is_check_due

    async def fault(self, deltas: Sequence[Delta]) -> str | None:
        """Validate the deltas of one batch. Return a message about the fault, or None.

        If a stop string cut off the text, the text is also accepted if it is a prefix of a valid
        text.
        """
        if (finish := finish_of(deltas)) is not None:
            self._is_truncated = self._is_truncated or finish.stop_text is not None
            if finish.reason != "stop":
                self.is_waiting = False
                return None
        for delta in deltas:
            if isinstance(delta, Text):
                self._add_text(delta)
                if self._matcher is not None and self._matcher.is_check_due:
                    self._set_fault(await self._matcher.check_prefix())
            elif isinstance(delta, Open | Close | Finish):
                await self._end_item()
                if isinstance(delta, Open):
                    self._start_item(delta)
                elif isinstance(delta, Finish):
                    await self._finish()
        return self._fault

    def _start_item(self, delta: Open) -> None:
        item = delta.item
        self._note_item(delta)
        if self._is_call:
            if self._tool_calls is not None and is_model_call(item):
                self._set_fault(self._tool_calls.rejection(item))
                self._start_matcher(self._tool_calls.input_format(item))
        elif is_answer(delta):
            self._start_matcher(self._format)
        self.is_waiting = self._matcher is not None

    def _note_item(self, delta: Open) -> None:
        self._is_call = is_call(delta)
        self._has_called = self._has_called or self._is_call
        self._has_answered = self._has_answered or is_answer(delta)

    def _start_matcher(self, answer_format: AnswerFormat | None) -> None:
        self._matcher = None if answer_format is None else FormatMatcher(answer_format)

    def _add_text(self, delta: Text) -> None:
        self.is_waiting = False
        if delta.channel == "refusal":
            self._matcher = None
        if self._matcher is not None:
            self._set_fault(self._matcher.feed(delta.text))

    async def _end_item(self) -> None:
        matcher, self._matcher, self.is_waiting = self._matcher, None, False
        if matcher is not None and not (self._fault or self._is_truncated):
            self._set_fault(await matcher.finish())

    async def _finish(self) -> None:
        if self._has_called or self._is_truncated:
            return
        self._fault = self._fault or self._text_fault
        if self._tool_calls is not None and self._tool_calls.required:
            self._fault = "no tool was called."
        elif self._format is not None and not self._has_answered:
            self._fault = await FormatMatcher(self._format).finish()

    def _set_fault(self, fault: str | None) -> None:
        if fault is None:
            return
        self._matcher = None
        if self._allows_text_with_calls and not self._is_call:
            self._text_fault = fault
        else:
            self._fault = self._fault or fault


def _unfinished_text(item: Item) -> str | None:
    """Return the text of an incomplete item, or None if the item contains a refusal."""
    if (text := KINDS[type(item)].whole_text) is not None:
        return str(getattr(item, text.field))
    parts = item.message_parts
    texts = [part.text for part in parts if isinstance(part, OutputText)]
    return "".join(texts) if len(texts) == len(parts) else None


def is_answer(delta: Delta) -> TypeGuard[Open]:
    """Return whether the delta opens an answer, that is, a message that must have the format which
    the request sets. Messages of the phase ``commentary`` may have any format."""
    return isinstance(delta, Open) and delta.item.is_message and delta.item.phase != "commentary"


def is_call(delta: Delta) -> TypeGuard[Open]:
    """Return whether the delta opens a tool call."""
    return isinstance(delta, Open) and not (delta.item.is_message or delta.item.is_reasoning)
