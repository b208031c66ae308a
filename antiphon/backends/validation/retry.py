"""Replies that are right or fail. A model that nothing holds to what was asked is told, what must
have a form is held back until it is checked, and it is asked again where it is wrong: for engines
and upstreams without grammars, and schemas that say more than a grammar can. One that is held to
it is read along.

It knows no engine and no wire.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import Reply, add_usage, flatten
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.conversation import Conversation, PromptTokens, ResumePoint
from antiphon.errors import CannotContinue, RunError
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

__all__ = ["MonitoredReply", "RetryingReply", "ValidationPlan", "validated"]

#: How often a model is asked, the first time included.
_ATTEMPTS = 3
_AGAIN = "That answer does not have the right form: {fault} Answer again, and say nothing else."
_CALL = "No tool was called. Call one."
_NOT_RUN = "Not run, for another call was wrong. Call again."


class ValidationPlan(Struct, frozen=True, kw_only=True):
    """What must be right: the ``form`` of the answer, the ``calls``; and whether who answers is
    held to it. ``talks``: words may stand beside calls, of which no form is asked. ``stops``: a
    stop string may have ended the answer, and nobody tells."""

    form: AnswerFormat | None
    calls: ToolCallRules | None
    holds_form: bool
    holds_calls: bool
    talks: bool
    stops: bool = False


def validated(
    reply: Reply,
    asked: ValidationPlan,
    conversation: Conversation,
    prepare: Callable[[Conversation], Awaitable[Reply]],
) -> Reply:
    """The same reply, which is right or fails. ``prepare`` asks the model anew."""
    form, calls = asked.form, asked.calls
    if form is None and calls is None:
        return reply
    watch = StreamValidator(
        form if asked.holds_form else None,
        calls if asked.holds_calls else None,
        talks=asked.talks,
        stops=asked.stops,
    )
    left = None if asked.holds_form else form, None if asked.holds_calls else calls
    if left != (None, None):
        reply = RetryingReply(reply, *left, conversation, prepare)
    if watch.is_idle:
        return reply
    return MonitoredReply(reply, watch, RetryingReply(reply, form, calls, conversation, prepare))


class RetryingReply(ReplyWrapper):
    """``Reply`` that is right or fails. ``form``: of the answer, ``calls``: which may be made; one
    of both at least. ``prepare`` asks the model, about the conversation with what went wrong behind
    it the second time. Its tokens are not kept: not all were meant."""

    def __init__(
        self,
        reply: Reply,
        form: AnswerFormat | None,
        calls: ToolCallRules | None,
        conversation: Conversation,
        prepare: Callable[[Conversation], Awaitable[Reply]],
    ) -> None:
        super().__init__(reply)
        self._form = form
        self._calls = calls
        self._conversation = conversation
        self._prepare = prepare
        self._used = Usage()
        self._fault = ""
        #: What is told of an attempt that went wrong.
        self._behind: tuple[Item, ...] = ()

    @property
    def prompt_tokens(self) -> None:
        return None

    def resume(self, point: ResumePoint) -> Reply:
        if point.sampled_ids:
            raise CannotContinue("its format was checked")
        return self

    def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        return self.continue_from(self._reply.deltas())

    async def continue_from(
        self, answered: AsyncGenerator[tuple[Delta, ...], None]
    ) -> AsyncGenerator[tuple[Delta, ...], None]:
        """``answered``: the first attempt, of whose answer nothing was given out yet."""
        conversation = self._conversation
        for attempt in range(_ATTEMPTS):
            if attempt:
                items = (*conversation.items, *self._behind)
                conversation = replace(conversation, items=items, kept=None)
                answered = (await self._prepare(conversation)).deltas()
            async with aclosing(self._judged(answered)) as judged:
                async for delta in judged:
                    yield (delta,)
            if not self._fault:
                return
        raise _failed(self._fault)

    async def _judged(
        self, answered: AsyncGenerator[tuple[Delta, ...], None]
    ) -> AsyncGenerator[Delta, None]:
        """One attempt: from what must be right on, all comes at its end and only if it is. Words
        before a call are no answer, nor are those that were cut."""
        held: list[Delta] = []
        self._fault, has_called = "", False
        async with aclosing(flatten(answered)) as deltas:
            async for delta in deltas:
                if isinstance(delta, SampledTokens):
                    continue
                if isinstance(delta, Finish):
                    self._used = add_usage(self._used, delta.usage)
                    delta = replace(delta, usage=self._used)
                    if delta.reason == "stop":
                        held = await self._right(held, has_called, delta.stopped_by_string)
                    if self._fault:
                        return
                else:
                    has_called = has_called or is_call(delta)
                    is_free = has_called and self._calls is None
                    if not is_free and (held or self._must_be_right(delta)):
                        held.append(delta)
                        continue
                for each in (*held, delta):
                    yield each
                held = []

    def _must_be_right(self, delta: Delta) -> bool:
        if self._calls is not None and is_call(delta):
            return True
        must = self._form is not None or (self._calls is not None and self._calls.required)
        return must and is_answer(delta)

    async def _right(self, held: list[Delta], has_called: bool, stopped: bool) -> list[Delta]:
        """What is to be said, with the answer as it should be; ``_fault`` if it is wrong. What a
        stop string cut need only have begun right."""
        said = list(_items(held))
        if has_called:
            return held if self._calls is None else await self._called(held, said, self._calls)
        if self._calls is not None and self._calls.required:
            words = "".join(text for _, item, text in said if isinstance(item, Message))
            self._fault, self._behind = "no tool was called.", _talk(words, _CALL)
        elif self._form is not None:
            if stopped and all(FormatMatcher(self._form).feed(text) is None for *_, text in said):
                return held
            return await self._answered(held, said, self._form)
        return held

    async def _called(
        self, held: list[Delta], said: Sequence[tuple[slice, Item, str]], calls: ToolCallRules
    ) -> list[Delta]:
        made = [
            (item, text, await calls.fault(item, text))
            for _, item, text in said
            if isinstance(item, FunctionCall | CustomToolCall)
        ]
        self._fault = next(filter(None, (fault for *_, fault in made)), "")
        if self._fault:
            told = [_told(item, text, fault or _NOT_RUN) for item, text, fault in made]
            self._behind = (*(call for call, _ in told), *(result for _, result in told))
        return held

    async def _answered(
        self, held: list[Delta], said: Sequence[tuple[slice, Item, str]], form: AnswerFormat
    ) -> list[Delta]:
        answers = [(texts, text) for texts, item, text in said if isinstance(item, Message)]
        if not answers:
            self._fault, self._behind = "nothing was said.", _talk("", "Nothing was said.")
        for texts, text in reversed(answers):
            if any(isinstance(d, Text) and d.channel == "refusal" for d in held[texts]):
                continue
            try:
                right = await form.read(text)
            except ValueError as fault:
                self._fault = str(fault)
                self._behind = _talk(text, _AGAIN.format(fault=fault))
                return []
            if right != text:
                held[texts] = [Text(right)]
        return held


class MonitoredReply(ReplyWrapper):
    """``Reply`` of a model that somebody holds to what was asked: it comes as it is said, and is
    right or fails. Engines drop a grammar in silence where it grows too hard for them; upstreams do
    as they please. What is found wrong before anything of an answer was given out is held back from
    there on, and goes the way of ``checked``."""

    def __init__(self, reply: Reply, watch: StreamValidator, checked: RetryingReply) -> None:
        super().__init__(reply)
        self._watch = watch
        self._checked = checked
        self._is_held = False

    @property
    def prompt_tokens(self) -> PromptTokens | None:
        return None if self._is_held else self._reply.prompt_tokens

    def resume(self, point: ResumePoint) -> Reply:
        return MonitoredReply(self._reply.resume(point), self._watch, self._checked)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        watch, is_out = self._watch, False
        waiting: tuple[Delta, ...] = ()
        async with aclosing(self._reply.deltas()) as answered:
            async for known in answered:
                if watch.accept_text(known):
                    yield known
                    continue
                fault = await watch.fault(known)
                known = (*waiting, *known)
                if fault is not None and is_out:
                    raise _failed(fault)
                if fault is not None:
                    self._is_held = True
                    rest = self._checked.continue_from(_behind(known, answered))
                    async with aclosing(rest) as held:
                        async for each in held:
                            yield each
                    return
                waiting = known if watch.waits else ()
                if not waiting:
                    is_out = watch.has_begun
                    yield known


async def _behind(
    known: tuple[Delta, ...], answered: AsyncGenerator[tuple[Delta, ...], None]
) -> AsyncGenerator[tuple[Delta, ...], None]:
    yield known
    async for each in answered:
        yield each


def _failed(fault: str) -> RunError:
    return RunError(f"The model's answer has not the form that was asked for: {fault}")


def _items(held: Sequence[Delta]) -> Iterator[tuple[slice, Item, str]]:
    """Answers and calls: where the text of each stands, the item, and the text."""
    for at, delta in enumerate(held):
        if not isinstance(delta, Open) or not (is_answer(delta) or is_call(delta)):
            continue
        end = at + 1
        while end < len(held) and isinstance(held[end], Text):
            end += 1
        texts = held[at + 1 : end]
        text = "".join(each.text for each in texts if isinstance(each, Text))
        yield slice(at + 1, end), delta.item, text


def _talk(said: str, answer: str) -> tuple[Item, ...]:
    """What the model said, and what is said to that."""
    return (
        Message(id="", role="assistant", content=(OutputText(text=said),)),
        Message(id="", role="user", content=(InputText(text=answer),)),
    )


def _told(item: FunctionCall | CustomToolCall, text: str, result: str) -> tuple[Item, Item]:
    """A call, and a result that says why it was not run."""
    if isinstance(item, CustomToolCall):
        told = CustomToolCallOutput(call_id=item.call_id, output=result)
        return replace(item, input=text), told
    return replace(item, arguments=text), FunctionCallOutput(call_id=item.call_id, output=result)
