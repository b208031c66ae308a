"""Moderation of a response: a moderator judges its input and its output."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import structlog
from msgspec import UNSET, structs

from antiphon.backends.base import DeltaSink, Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.errors import InvalidRequest, RunError
from antiphon.inference.conversation import ResumePoint
from antiphon.runs.request.guards import Question
from antiphon.runs.request.moderators import Moderator, check_images
from antiphon.stream.deltas import Close, Delta, Finish, NewPrompt, Open, Text, finish_of
from antiphon.support.push import send
from antiphon.support.tasks import running
from antiphon.wire.items import ComputerScreenshot, InputImage, InputText, Item, Message
from antiphon.wire.moderation import Moderation, ModerationFailure, ModerationResult, Verdict
from antiphon.wire.request_options import ModerationConfig

_log = structlog.get_logger(__name__)

_Outcome = ModerationResult | ModerationFailure


async def moderated_reply(
    reply: Reply, config: ModerationConfig, moderator: Moderator, question: Question
) -> Reply:
    """Return the reply with the moderation that a request asks for. ``question``: the input of the
    request. Raises ``InvalidRequest`` if the policy blocks the input or the moderator does not see
    its images, and ``RunError`` if this cannot be found out."""
    await check_images(moderator, question, "moderation.model")
    outcome = None
    if _blocks(config, "input"):
        outcome = _result(config, await moderator.judge(question))
        if outcome.flagged:
            raise InvalidRequest(
                f"The input was blocked by moderation: {_names(outcome)}.",
                param="input",
                code="content_policy_violation",
            )
    return ModeratedReply(reply, config, moderator, question, outcome)


class ModeratedReply(ReplyWrapper):
    """``Reply`` with the moderation of its input and output.

    The input is judged while the model answers, unless it was judged before (``input_outcome``).
    The output is judged at its end. If the policy blocks outputs, each message is held back until
    it was judged. A message that is flagged is left out and ends the reply.
    """

    def __init__(
        self,
        reply: Reply,
        config: ModerationConfig,
        moderator: Moderator,
        question: Question,
        input_outcome: _Outcome | None,
    ) -> None:
        super().__init__(reply)
        self._config = config
        self._moderator = moderator
        self._question = question
        self._input_outcome = input_outcome
        self._output_outcome: _Outcome | None = None
        self._blocks = _blocks(config, "output")
        #: The texts of the messages so far.
        self._texts: list[str] = []
        self._is_message = self._is_blocked = False
        #: The deltas of the open message, if the policy blocks outputs.
        self._held: list[Delta] = []

    def resume(self, point: ResumePoint) -> Reply:
        self._reply = self._reply.resume(point)
        self._texts = [_text(item) for item in (*point.items, *point.open_items)]
        self._is_message = bool(point.open_items) and isinstance(point.open_items[-1], Message)
        return self

    async def pump(self, sink: DeltaSink) -> None:
        async with running(self._judge_input()) as judging:
            await self._reply.pump(partial(self._read, sink, judging))

    def final_fields(self, sampled: array[int], output: tuple[Item, ...]) -> Mapping[str, Any]:
        fields = super().final_fields(sampled, output)
        if self._input_outcome is None or self._output_outcome is None:
            return fields
        report = Moderation(input=self._input_outcome, output=self._output_outcome)
        return {**fields, "moderation": report}

    def _read(
        self, sink: DeltaSink, judging: Awaitable[None], batch: tuple[Delta, ...]
    ) -> Awaitable[None] | None:
        for delta in () if self._blocks else batch:
            self._note(delta)
        if self._blocks:
            return self._pass_judged(sink, judging, batch)
        if finish_of(batch) is not None:
            return self._finish(sink, judging, batch)
        return sink(batch)

    def _note(self, delta: Delta) -> None:
        if isinstance(delta, Open):
            self._is_message = isinstance(delta.item, Message)
        elif isinstance(delta, Text) and self._is_message:
            self._texts.append(delta.text)

    async def _finish(
        self, sink: DeltaSink, judging: Awaitable[None], batch: tuple[Delta, ...]
    ) -> None:
        """Push the last deltas, when the moderation is known."""
        await judging
        if self._output_outcome is None:
            self._output_outcome = await self._outcome("".join(self._texts))
        await send(sink, batch)

    async def _pass_judged(
        self, sink: DeltaSink, judging: Awaitable[None], batch: tuple[Delta, ...]
    ) -> None:
        """Push the deltas that are not part of the open message. At the end of a message, judge it,
        and push it if it may be seen."""
        passed: list[Delta] = []
        for delta in batch:
            if self._held and _ends_message(delta):
                await self._judge_message()
                passed += self._held
                self._held = []
            if self._is_blocked and isinstance(delta, Finish):
                delta = structs.replace(delta, reason="content_filter", stop_text=None)
            elif self._is_blocked:
                continue
            self._note(delta)
            (self._held if self._is_message and not isinstance(delta, Finish) else passed).append(
                delta
            )
        if isinstance(passed[-1] if passed else None, Finish):
            await self._finish(sink, judging, tuple(passed))
        elif passed:
            await send(sink, tuple(passed))

    async def _judge_message(self) -> None:
        """Judge the message that is held back. If it is flagged, drop it and end the reply."""
        self._is_message = False
        text = "".join(delta.text for delta in self._held if isinstance(delta, Text))
        if not text:
            return
        outcome = _result(self._config, await self._judge(text))
        self._output_outcome = outcome
        if outcome.flagged:
            self._is_blocked, self._held = True, []
            self._reply.stop()

    async def _judge_input(self) -> None:
        if self._input_outcome is None:
            self._input_outcome = await self._outcome(None)

    async def _judge(self, answer: str | None) -> Verdict:
        return await self._moderator.judge(structs.replace(self._question, answer=answer))

    async def _outcome(self, answer: str | None) -> _Outcome:
        try:
            return _result(self._config, await self._judge(answer))
        except RunError as error:
            _log.warning("cannot moderate a response", why=error.message)
            return ModerationFailure(code=error.code or "server_error", message=error.message)


def _ends_message(delta: Delta) -> bool:
    return isinstance(delta, Open | Finish | NewPrompt) or (
        isinstance(delta, Close) and not delta.key
    )


def _blocks(config: ModerationConfig, name: str) -> bool:
    step = getattr(config.policy, name, None)
    return step is not None and step.mode == "block"


def _result(config: ModerationConfig, verdict: Verdict) -> ModerationResult:
    return ModerationResult(model=config.model, **structs.asdict(verdict))


def _names(verdict: Verdict) -> str:
    return ", ".join(name for name, found in verdict.categories.items() if found)


def moderated_parts(items: Iterable[Item]) -> tuple[InputText | InputImage, ...]:
    """Return the texts and images of items, including those in the outputs of tools."""
    return tuple(part for item in items for part in _parts(item))


def _parts(item: Item) -> Iterator[InputText | InputImage]:
    for name in ("content", "output"):
        parts = getattr(item, name, ())
        if isinstance(parts, str):
            yield InputText(text=parts)
        for part in parts if isinstance(parts, tuple) and item.type != "reasoning" else ():
            if isinstance(part, InputImage):
                yield part
            elif isinstance(part, ComputerScreenshot):
                yield InputImage(image_url=part.image_url, file_id=part.file_id)
            elif isinstance(text := getattr(part, "text", UNSET), str):
                yield InputText(text=text)


def _text(item: Item) -> str:
    return "\n".join(part.text for part in _parts(item) if isinstance(part, InputText))
