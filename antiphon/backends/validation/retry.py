"""Validate replies, and retry invalid replies.

There are two cases:

- The engine or upstream enforces the requested format. The reply is validated while it streams.
- The engine or upstream does not enforce the format, for example because it has no grammars, or
  because a rule of the schema cannot be expressed in a grammar. The reply is buffered and
  validated. If the reply is invalid, the model is called again with the error in the prompt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import Reply, add_usage, flatten
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.errors import CannotContinue, RunError
from antiphon.inference.conversation import Conversation, PromptTokens, ResumePoint
from antiphon.stream.deltas import Delta, Finish, Open, SampledTokens, Text
from antiphon.wire.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputText,
)
from antiphon.wire.response import Usage

from .answer_format import AnswerFormat, FormatMatcher
from .monitor import StreamValidator, is_answer, is_call
from .tool_calls import ToolCallRules

__all__ = ["MonitoredReply", "RetryingReply", "ValidationPlan", "validate_reply"]

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
    """Return a reply that validates ``reply``. The returned reply yields a valid output or fails.
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
        self._usage = Usage()
        self._fault = ""
        #: The invalid output of the last attempt, and the message about its fault.
        self._feedback: tuple[Item, ...] = ()

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

    def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        return self.continue_from(self._reply.deltas())

    async def continue_from(
        self, deltas: AsyncGenerator[tuple[Delta, ...], None]
    ) -> AsyncGenerator[tuple[Delta, ...], None]:
        """Validate the first attempt, and retry if it is invalid. ``deltas``: the deltas of the
        first attempt. The caller must not have yielded any part of this attempt's answer."""
        conversation = self._conversation
        for attempt in range(_ATTEMPTS):
            if attempt:
                items = (*conversation.items, *self._feedback)
                conversation = replace(conversation, items=items, stored_tokens=None)
                self._attempt_reply = await self._prepare(conversation)
                deltas = self._attempt_reply.deltas()
            async with aclosing(self._attempt(deltas)) as valid_deltas:
                async for delta in valid_deltas:
                    yield (delta,)
            if not self._fault:
                return
        raise _format_error(self._fault)

    async def _attempt(
        self, deltas: AsyncGenerator[tuple[Delta, ...], None]
    ) -> AsyncGenerator[Delta, None]:
        """Run one attempt, and yield its valid deltas.

        When the first answer or call that must be checked begins, its deltas and all later deltas
        are held back until the end of the attempt. They are yielded only if they are valid. If the
        reply has a call, its text is not checked as an answer. If the reply was cut off, for
        example at the token limit, nothing is checked.
        """
        held: list[Delta] = []
        self._fault, has_called = "", False
        async with aclosing(flatten(deltas)) as single_deltas:
            async for delta in single_deltas:
                if isinstance(delta, SampledTokens):
                    continue
                if isinstance(delta, Finish):
                    self._usage = add_usage(self._usage, delta.usage)
                    delta = replace(delta, usage=self._usage)
                    if delta.reason == "stop":
                        held = await self._validate(held, has_called, delta.stop_text is not None)
                    if self._fault:
                        return
                else:
                    has_called = has_called or is_call(delta)
                    is_free = has_called and self._rules is None
                    if not is_free and (held or self._must_be_valid(delta)):
                        held.append(delta)
                        continue
                for each in (*held, delta):
                    yield each
                held = []

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
            words = "".join(text for _, item, text in items if isinstance(item, Message))
            self._fault, self._feedback = "no tool was called.", _exchange(words, _CALL)
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
            if isinstance(item, FunctionCall | CustomToolCall)
        ]
        self._fault = next(filter(None, (fault for *_, fault in made)), "")
        if self._fault:
            rejected = [_rejected_call(item, text, fault or _NOT_RUN) for item, text, fault in made]
            self._feedback = (*(call for call, _ in rejected), *(result for _, result in rejected))
        return held

    async def _check_answer(
        self, held: list[Delta], items: Sequence[tuple[slice, Item, str]], form: AnswerFormat
    ) -> list[Delta]:
        answers = [(texts, text) for texts, item, text in items if isinstance(item, Message)]
        if not answers:
            self._fault, self._feedback = (
                "there is no answer.",
                _exchange("", "There is no answer."),
            )
        for texts, text in reversed(answers):
            if any(isinstance(d, Text) and d.channel == "refusal" for d in held[texts]):
                continue
            try:
                valid = await form.read(text)
            except ValueError as fault:
                self._fault = str(fault)
                self._feedback = _exchange(text, _AGAIN.format(fault=fault))
                return []
            if valid != text:
                held[texts] = [Text(valid)]
        return held


class MonitoredReply(ReplyWrapper):
    """``Reply`` that is validated while it streams. It is used if the engine or upstream enforces
    the format, so that faults are rare and the reply need not be buffered.

    Validation is still necessary: engines silently drop a grammar that becomes too complex, and
    some upstreams claim to enforce a format but do not.

    - If a fault is found before any part of an answer was yielded, ``retrying`` takes over. It is a
      ``RetryingReply``: it buffers the output, and retries if the output is invalid.
    - If a fault is found after a part of an answer was yielded, the reply fails.
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

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        validator = self._validator
        is_out = validator.has_output  # before an interruption
        waiting: tuple[Delta, ...] = ()
        async with aclosing(self._reply.deltas()) as deltas:
            async for batch in deltas:
                if validator.accept_text(batch):
                    yield batch
                    continue
                fault = await validator.fault(batch)
                batch = (*waiting, *batch)
                if fault is not None and is_out:
                    raise _format_error(fault)
                if fault is not None:
                    self._uses_retries = True
                    yield ()  # a caller that needs the token ids ends the reply here
                    rest = self._retrying.continue_from(_prepend(batch, deltas))
                    async with aclosing(rest) as held:
                        async for each in held:
                            yield each
                    return
                waiting = batch if validator.is_waiting else ()
                if not waiting:
                    is_out = validator.has_output
                    yield batch


async def _prepend(
    batch: tuple[Delta, ...], deltas: AsyncGenerator[tuple[Delta, ...], None]
) -> AsyncGenerator[tuple[Delta, ...], None]:
    yield batch
    async for each in deltas:
        yield each


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
    if isinstance(item, CustomToolCall):
        rejected = CustomToolCallOutput(call_id=item.call_id, output=result)
        return replace(item, input=text), rejected
    return replace(item, arguments=text), FunctionCallOutput(call_id=item.call_id, output=result)
