"""Answers of a given form from models that nothing holds to all of it: they are told, their answer
is held back until it is checked, and they are asked again where it is wrong.

For engines and upstreams without grammars, and for schemas that say more than a grammar can. It
knows no engine and no wire.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.conversation import Begun, Conversation, Options
from antiphon.dialects.schemas import bare, check_strict, is_enforced, lenient
from antiphon.errors import CannotContinue, RunError, SetupError
from antiphon.stream.deltas import Delta, Finish, Open, Sampled, Text
from antiphon.wire.extensions import Guide
from antiphon.wire.items import InputText, Item, Message, OutputText, Reasoning
from antiphon.wire.response import (
    JsonObjectFormat,
    JsonSchemaFormat,
    Usage,
)

from .base import Reply, added, may_be_refused, singly
from .judge import Judge

__all__ = ["Checked", "Form", "form_of"]

#: How often a model is asked, the first time included.
_ATTEMPTS = 3
_AGAIN = "That answer does not have the right form: {fault} Answer again, and say nothing else."
_PATH = "text.format.schema"
_FENCED = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


class Form:
    """What an answer must look like: a grammar in llguidance's Lark, and for JSON a judge of what
    it leaves open. Raises ``InvalidRequest`` for one that cannot be read, ``SetupError`` without
    llguidance."""

    def __init__(self, lark: str, *, is_json: bool, judge: Judge | None = None) -> None:
        try:
            import llguidance
        except ImportError:
            raise SetupError('llguidance is not installed: pip install "antiphon[llama]"') from None
        self._grammar = llguidance.grammar_from("lark", lark)
        self._matcher = llguidance.LLMatcher
        self._bytes = llguidance.LLTokenizer("byte")
        self._is_json = is_json
        self._judge = judge

    async def read(self, text: str) -> str:
        """The answer in ``text``: JSON is found between fences and words. Raises ``ValueError``
        that says what is wrong."""
        fault: str | None = (
            "it is not the JSON that was asked for."
            if self._is_json
            else "it does not match the grammar that was given."
        )
        for candidate in self._candidates(text):
            if self._obeys(candidate):
                fault = None if self._judge is None else await self._judge.fault(candidate)
                if fault is None:
                    return candidate
                break
        raise ValueError(fault)

    def _candidates(self, text: str) -> Iterator[str]:
        yield text
        yield text.strip()
        if not self._is_json:
            return
        yield from (found.strip() for found in _FENCED.findall(text))
        decoder = json.JSONDecoder()
        for opening in re.finditer(r"[{\[]", text):
            try:
                _, end = decoder.raw_decode(text, opening.start())
            except (ValueError, RecursionError):
                continue
            yield text[opening.start() : end]
            return

    def _obeys(self, text: str) -> bool:
        matcher = self._matcher(self._bytes, self._grammar)
        ids = list(text.encode("utf-8", "replace"))
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


async def form_of(options: Options) -> Form | None:
    """The form of the answer that a request asks for, if any. Raises ``InvalidRequest``."""
    match options.text.format:
        case JsonObjectFormat():
            return Form('start: %json {"type": "object"}', is_json=True)
        case JsonSchemaFormat(schema=schema, strict=strict):
            if strict:
                check_strict(schema, _PATH)
            known = bare(schema)
            if is_enforced(known, _PATH, strict=bool(strict)):
                return Form(f"start: %json {json.dumps(known)}", is_json=True)
            judge = Judge(schema, _PATH)
            await judge.check()
            return Form(f"start: %json {json.dumps(lenient(known))}", is_json=True, judge=judge)
    return None if options.guide is None else _guided(options.guide)


def _guided(guide: Guide) -> Form:
    from antiphon.dialects.constraints import guide_lark

    return Form(guide_lark(guide), is_json=False)


class Checked:
    """``Reply`` that is right or fails. ``prepare`` asks the model, about the conversation with
    what went wrong behind it the second time. Its tokens are not kept: not all were meant."""

    kept = None

    def __init__(
        self,
        reply: Reply,
        form: Form,
        conversation: Conversation,
        prepare: Callable[[Conversation], Awaitable[Reply]],
    ) -> None:
        self._reply = reply
        self._form = form
        self._conversation = conversation
        self._prepare = prepare
        self._used = Usage()
        self._said = self._fault = ""

    @property
    def input_tokens(self) -> int:
        return self._reply.input_tokens

    @property
    def dropped(self) -> tuple[str, ...]:
        return self._reply.dropped

    @property
    def may_be_refused(self) -> bool:
        return may_be_refused(self._reply)

    def resumed(self, begun: Begun) -> Reply:
        if begun.sampled:
            raise CannotContinue("its format was checked")
        return self

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        reply, conversation = self._reply, self._conversation
        for attempt in range(_ATTEMPTS):
            if attempt:
                conversation = _corrected(conversation, self._said, self._fault)
                reply = await self._prepare(conversation)
            async with aclosing(self._judged(reply)) as judged:
                async for delta in judged:
                    yield (delta,)
            if not self._fault:
                return
        raise RunError(f"The model's answer has not the form that was asked for: {self._fault}")

    async def _judged(self, reply: Reply) -> AsyncGenerator[Delta, None]:
        """One attempt: from the answer on, all comes at its end and only if it is right. Words
        before a call are no answer, nor are those that were cut."""
        held: list[Delta] = []
        self._fault, has_called = "", False
        async with aclosing(singly(reply.deltas())) as deltas:
            async for delta in deltas:
                if isinstance(delta, Sampled):
                    continue
                if isinstance(delta, Finish):
                    self._used = added(self._used, delta.usage)
                    delta = replace(delta, usage=self._used)
                    if delta.reason == "stop" and not has_called:
                        held = await self._right(held)
                    if self._fault:
                        return
                elif isinstance(delta, Open) and not isinstance(delta.item, Message | Reasoning):
                    has_called = True
                elif not has_called and (held or _is_answer(delta)):
                    held.append(delta)
                    continue
                for each in (*held, delta):
                    yield each
                held = []

    async def _right(self, held: list[Delta]) -> list[Delta]:
        """What is to be said, with the answer as it should be; ``_fault`` if it is wrong."""
        answers = [at for at, delta in enumerate(held) if _is_answer(delta)]
        if not answers:
            self._said, self._fault = "", "nothing was said."
        for at in reversed(answers):
            texts = _texts(held[at + 1 :])
            if any(text.channel == "refusal" for text in texts):
                continue
            self._said = "".join(text.text for text in texts)
            try:
                right = await self._form.read(self._said)
            except ValueError as fault:
                self._fault = str(fault)
                return []
            if right != self._said:
                held[at + 1 : at + 1 + len(texts)] = [Text(right)]
        return held


def _is_answer(delta: Delta) -> bool:
    """A message begins that is to have the form: what a model says by the way has none."""
    return (
        isinstance(delta, Open)
        and isinstance(delta.item, Message)
        and delta.item.phase != "commentary"
    )


def _texts(deltas: Iterable[Delta]) -> list[Text]:
    """Those at the beginning."""
    texts = []
    for delta in deltas:
        if not isinstance(delta, Text):
            break
        texts.append(delta)
    return texts


def _corrected(conversation: Conversation, said: str, fault: str) -> Conversation:
    """The conversation with the answer that was wrong, and why."""
    again: tuple[Item, ...] = (
        Message(id="", role="assistant", content=(OutputText(text=said),)),
        Message(id="", role="user", content=(InputText(text=_AGAIN.format(fault=fault)),)),
    )
    return replace(conversation, items=(*conversation.items, *again), kept=None)
