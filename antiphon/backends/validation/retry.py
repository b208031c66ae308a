"""Validate replies, and retry invalid replies.

There are two cases:

- The engine or upstream enforces the requested format. The reply is validated while it streams.
- The engine or upstream does not enforce the format, for example because it has no grammars, or
  because a rule of the schema cannot be expressed in a grammar. The reply is buffered and
  validated. If the reply is invalid, the model is called again with the error in the prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import DeltaSink, Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.errors import CannotContinue, RunError
from antiphon.inference.conversation import Conversation, PromptTokens, ResumePoint
from antiphon.stream.deltas import Delta, Finish, Open, SampledTokens, Text
from antiphon.stream.kinds import output_type, with_whole_text
from antiphon.support.push import send
from antiphon.wire.items import (
    CustomToolCall,
    FunctionCall,
    InputText,
    Item,
    Message,
    OutputText,
    is_model_call,
)
from antiphon.wire.response import Usage, sum_usage

from .answer_format import AnswerFormat, FormatMatcher
from .monitor import StreamValidator, is_answer, is_call
from .tool_calls import ToolCallRules

#: Maximum number of model calls for one reply, including the first call.
_ATTEMPTS = 3
_AGAIN = (
    "That answer does not match the requested format: {fault} Answer again, with the answer alone."
)
_CALL = "No tool was called. Call one."
_NOT_RUN = "Not run, because another call was invalid. Call again."


class ValidationPlan(Struct, frozen=True, kw_only=True):
    """The rules by which a reply is validated, and which of them the engine or upstream enforces.

    ``answer_format``: the format of the answer; None allows any text. ``tool_calls``: the rules for
    tool calls; None means no rules. ``enforces_format``: whether the engine or upstream enforces
    ``answer_format``. ``enforces_calls``: whether the engine or upstream enforces ``tool_calls``.
    ``allows_text_with_calls`` and ``has_stop_strings``: see ``StreamValidator``.
    """

    answer_format: AnswerFormat | None
    tool_calls: ToolCallRules | None
    enforces_format: bool
    enforces_calls: bool
    allows_text_with_calls: bool
    has_stop_strings: bool = False


def validate_reply(
    reply: Reply,
    plan: ValidationPlan,
    conversation: Conversation,
    prepare: Callable[[Conversation], Awaitable[Reply]],
) -> Reply:
    """Return a reply that validates ``reply``. The returned reply has a valid output or fails.
    If the plan has no rules, return ``reply`` itself.

    ``prepare``: function that prepares the reply for another attempt. Its argument is a copy of the
    conversation, to which the invalid output and a message about the fault have been appended.
    """
    form, calls = plan.answer_format, plan.tool_calls
    if form is None and calls is None:
        return reply
    validator = StreamValidator(
        form if plan.enforces_format else None,
        calls if plan.enforces_calls else None,
        allows_text_with_calls=plan.allows_text_with_calls,
        has_stop_strings=plan.has_stop_strings,
    )
    unenforced = None if plan.enforces_format else form, None if plan.enforces_calls else calls
    if unenforced != (None, None):
        reply = RetryingReply(reply, *unenforced, conversation, prepare)
    if validator.is_idle:
        return reply
    return MonitoredReply(
        reply, validator, RetryingReply(reply, form, calls, conversation, prepare)
    )


class RetryingReply(ReplyWrapper):
    """``Reply`` that is buffered, validated and, if invalid, retried. It fails if no attempt is
    valid.

    ``form``: the answer's format. ``calls``: the rules for tool calls. At least one of the two is
    set. ``prepare``: prepares the reply of the next attempt. Its argument is a copy of the
    conversation, to which the invalid output and a message about the fault have been appended.
    ``prompt_tokens`` is None, because the tokens of rejected attempts must not become part of the
    next turn's prompt.
    """

    def __init__(
        self,
        reply: Reply,
        form: AnswerFormat | None,
        calls: ToolCallRules | None,
        conversation: Conversation,
        prepare: Callable[[Conversation], Awaitable[Reply]],
    ) -> None:
        super().__init__(reply)
        self._format = form
        self._rules = calls
        self._conversation = conversation
        self._prepare = prepare
        #: The reply of the current attempt.
        self._attempt_reply = reply

    @property
    def prompt_tokens(self) -> None:
        return None

    @property
    def reports_tokens(self) -> bool:
        return False

    def resume(self, point: ResumePoint) -> Reply:
        if point.sampled_ids:
            raise CannotContinue("its output had to be validated as a whole")
        return self

    def stop(self) -> None:
        self._attempt_reply.stop()

    async def pump(self, sink: DeltaSink) -> None:
        attempt = self.start_attempt(sink)
        await self._reply.pump(attempt.push)
        await self.continue_after(attempt)

    def start_attempt(self, sink: DeltaSink, usage: Usage = Usage()) -> _Attempt:  # noqa: B008
        """Start an attempt, whose ``push`` takes the deltas of a model call. ``sink``: takes the
        valid deltas. ``usage``: the usage of the earlier attempts."""
        return _Attempt(self._format, self._rules, sink, usage)

    async def continue_after(self, attempt: _Attempt) -> None:
        """If the first attempt is invalid, retry. Raises ``RunError`` if no attempt is valid."""
        conversation = self._conversation
        for _ in range(_ATTEMPTS - 1):
            if not attempt.fault:
                return
            items = (*conversation.items, *attempt.feedback)
            conversation = replace(conversation, items=items, stored_tokens=None)
            self._attempt_reply = await self._prepare(conversation)
            attempt = self.start_attempt(attempt.sink, attempt.usage)
            await self._attempt_reply.pump(attempt.push)
        if attempt.fault:
            raise _format_error(attempt.fault)


class _Attempt:
    """The validation of one model call.

    When the first answer or call that must be checked begins, its deltas and all later deltas are
    held back until the end of the attempt. They go to ``sink`` only if they are valid. If the reply
    has a call, its text is not checked as an answer. If the reply was cut off, for example at the
    token limit, nothing is checked.

    ``usage``: the usage of this attempt and the earlier ones. ``fault``: why the output is invalid;
    empty if it is valid. ``feedback``: the invalid output, and the message about its fault.
    """

    def __init__(
        self,
        form: AnswerFormat | None,
        rules: ToolCallRules | None,
        sink: DeltaSink,
        usage: Usage,
    ) -> None:
        self._format = form
        self._rules = rules
        self.sink = sink
        self.usage = usage
        self.fault = ""
        self.feedback: tuple[Item, ...] = ()
        self._held: list[Delta] = []
        self._has_called = False

    def push(self, batch: tuple[Delta, ...]) -> Awaitable[None] | None:
        """Hold the deltas back, or give them to ``sink``."""
        passed: list[Delta] = []
        for delta in batch:
            if isinstance(delta, SampledTokens):
                continue
            if isinstance(delta, Finish):
                return self._finish(passed, delta)
            self._has_called = self._has_called or is_call(delta)
            is_free = self._has_called and self._rules is None
            if not is_free and (self._held or self._must_be_valid(delta)):
                self._held.append(delta)
            else:
                passed += (*self._held, delta)
                self._held = []
        return self.sink(tuple(passed)) if passed else None

    async def _finish(self, passed: list[Delta], finish: Finish) -> None:
        """End the attempt: push ``passed`` and, if they are valid, the deltas that were held
        back."""
        held, self._held = self._held, []
        self.usage = sum_usage((self.usage, finish.usage))
        if finish.reason == "stop":
            held = await self._validate(held, self._has_called, finish.stop_text is not None)
        if not self.fault:
            passed += (*held, replace(finish, usage=self.usage))
        if passed:
            await send(self.sink, tuple(passed))

    def _must_be_valid(self, delta: Delta) -> bool:
        if self._rules is not None and is_call(delta):
            return True
        must = self._format is not None or (self._rules is not None and self._rules.required)
        return must and is_answer(delta)

    async def _validate(self, held: list[Delta], has_called: bool, stopped: bool) -> list[Delta]:
        """Validate ``held``, the deltas that were held back. Return the deltas to yield.

        Text around a JSON answer is removed. If the deltas are invalid, ``_fault`` is set.
        ``has_called``: whether the reply has a call. ``stopped``: whether a stop string cut off the
        text. If so, it is enough that the text is the beginning of a valid text.
        """
        items = list(_written_items(held))
        if has_called:
            return (
                held if self._rules is None else await self._check_calls(held, items, self._rules)
            )
        if self._rules is not None and self._rules.required:
            words = "".join(text for _, item, text in items if item.is_message)
            self.fault, self.feedback = "no tool was called.", _exchange(words, _CALL)
        elif self._format is not None:
            if stopped and all(
                FormatMatcher(self._format).feed(text) is None for *_, text in items
            ):
                return held
            return await self._check_answer(held, items, self._format)
        return held

    async def _check_calls(
        self, held: list[Delta], items: Sequence[tuple[slice, Item, str]], calls: ToolCallRules
    ) -> list[Delta]:
        made = [
            (item, text, await calls.fault(item, text))
            for _, item, text in items
            if is_model_call(item)
        ]
        self.fault = next(filter(None, (fault for *_, fault in made)), "")
        if self.fault:
            rejected = [_rejected_call(item, text, fault or _NOT_RUN) for item, text, fault in made]
            self.feedback = (*(call for call, _ in rejected), *(result for _, result in rejected))
        return held

    async def _check_answer(
        self, held: list[Delta], items: Sequence[tuple[slice, Item, str]], form: AnswerFormat
    ) -> list[Delta]:
        answers = [(texts, text) for texts, item, text in items if item.is_message]
        if not answers:
            self.fault, self.feedback = (
                "there is no answer.",
                _exchange("", "There is no answer."),
            )
        for texts, text in reversed(answers):
            if any(isinstance(d, Text) and d.channel == "refusal" for d in held[texts]):
                continue
            try:
                valid = await form.read(text)
            except ValueError as fault:
                self.fault = str(fault)
                self.feedback = _exchange(text, _AGAIN.format(fault=fault))
                return []
            if valid != text:
                held[texts] = [Text(valid)]
        return held


class MonitoredReply(ReplyWrapper):
    """``Reply`` that is validated while it streams. It is used if the engine or upstream enforces
    the format, so that faults are rare and the reply need not be buffered.

    Validation is still necessary: engines silently drop a grammar that becomes too complex, and
    some upstreams claim to enforce a format but do not.

    - If a fault is found before any part of an answer was pushed, ``retrying`` takes over. It is a
      ``RetryingReply``: it buffers the output, and retries if the output is invalid.
    - If a fault is found after a part of an answer was pushed, the reply fails.
    """

    def __init__(self, reply: Reply, validator: StreamValidator, retrying: RetryingReply) -> None:
        super().__init__(reply)
        self._validator = validator
        self._retrying = retrying
        self._uses_retries = False

    @property
    def prompt_tokens(self) -> PromptTokens | None:
        return None if self._uses_retries else self._reply.prompt_tokens

    @property
    def reports_tokens(self) -> bool:
        return not self._uses_retries and self._reply.reports_tokens

    def resume(self, point: ResumePoint) -> Reply:
        if point.sampled_ids:
            self._validator.resume(point.items, point.open_items)
        return MonitoredReply(self._reply.resume(point), self._validator, self._retrying)

    def stop(self) -> None:
        (self._retrying if self._uses_retries else self._reply).stop()

    async def pump(self, sink: DeltaSink) -> None:
        stream = _MonitoredStream(self._validator, sink, self._take_over)
        await self._reply.pump(stream.push)
        if stream.attempt is not None:
            await self._retrying.continue_after(stream.attempt)

    def _take_over(self, sink: DeltaSink) -> _Attempt:
        self._uses_retries = True
        return self._retrying.start_attempt(sink)


class _MonitoredStream:
    """The validation of a reply while it streams. ``take_over`` starts the attempt that gets the
    deltas if a fault is found before any part of an answer was pushed."""

    def __init__(
        self,
        validator: StreamValidator,
        sink: DeltaSink,
        take_over: Callable[[DeltaSink], _Attempt],
    ) -> None:
        self._validator = validator
        self._sink = sink
        self._take_over = take_over
        #: Whether a part of an answer was pushed, perhaps before an interruption.
        self._is_out = validator.has_output
        self._waiting: tuple[Delta, ...] = ()
        self.attempt: _Attempt | None = None

    def push(self, batch: tuple[Delta, ...]) -> Awaitable[None] | None:
        """Validate the deltas, and give them to the sink."""
        if self.attempt is not None:
            return self.attempt.push(batch)
        if self._validator.accept_text(batch):
            return self._sink(batch)
        return self._check(batch)

    async def _check(self, batch: tuple[Delta, ...]) -> None:
        fault = await self._validator.fault(batch)
        batch, self._waiting = (*self._waiting, *batch), ()
        if fault is not None and self._is_out:
            raise _format_error(fault)
        if fault is not None:
            self.attempt = self._take_over(self._sink)
            await send(self._sink, ())  # a sink that needs the token ids ends the reply here
            await send(self.attempt.push, batch)
        elif self._validator.is_waiting:
            self._waiting = batch
        else:
            self._is_out = self._validator.has_output
            await send(self._sink, batch)


def _format_error(fault: str) -> RunError:
    return RunError(f"The model's output does not match the requested format: {fault}")


def _written_items(held: Sequence[Delta]) -> Iterator[tuple[slice, Item, str]]:
    """Yield each answer and each call in the buffered deltas ``held``. Each result has three
    values: the slice of the item's text deltas in ``held``, the item, and the item's text."""
    for at, delta in enumerate(held):
        if not isinstance(delta, Open) or not (is_answer(delta) or is_call(delta)):
            continue
        end = at + 1
        while end < len(held) and isinstance(held[end], Text):
            end += 1
        texts = held[at + 1 : end]
        text = "".join(each.text for each in texts if isinstance(each, Text))
        yield slice(at + 1, end), delta.item, text


def _exchange(text: str, answer: str) -> tuple[Item, ...]:
    """Return two messages for the prompt of the next attempt: an assistant message with ``text``,
    which is the invalid output, and a user message with ``answer``, which states the fault."""
    return (
        Message(id="", role="assistant", content=(OutputText(text=text),)),
        Message(id="", role="user", content=(InputText(text=answer),)),
    )


def _rejected_call(
    item: FunctionCall | CustomToolCall, text: str, result: str
) -> tuple[Item, Item]:
    """Return a tool call that was not run, and its tool result. ``text``: the input of the call.
    ``result``: the text of the tool result, which says why the call was not run."""
    return with_whole_text(item, text), output_type(item)(call_id=item.call_id, output=result)
