"""What a response tells besides, to those who look into a model: the prompt and the output as the
model saw and wrote them, and how long it took. Named after vLLM's fields.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from antiphon.backends.base import Backend, Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.conversation import ResumePoint
from antiphon.errors import InvalidRequest, RunError
from antiphon.runs.execution.token_log import last_turn
from antiphon.stream.deltas import Delta
from antiphon.wire.response import Usage

__all__ = ["RawMessagesReply"]

_FIELD = "enable_response_messages"
_UNKNOWN = (
    f"Unsupported parameter: '{_FIELD}' is not supported with this model: its tokens are not known"
    " here."
)


class RawMessagesReply(ReplyWrapper):
    """``Reply`` that is watched. ``spell``: whether the messages are wanted, ``timed``: the times.
    ``turns``: what each turn used, once there are any. ``clock`` gives seconds. Raises
    ``InvalidRequest`` where messages cannot be told."""

    def __init__(
        self,
        reply: Reply,
        backend: Backend,
        *,
        with_messages: bool,
        with_metrics: bool,
        clock: Callable[[], float],
        turn_usages: Sequence[Usage] = (),
    ) -> None:
        super().__init__(reply)
        self._spelling: Backend | None = None
        if with_messages:
            if not backend.capabilities.detokenizes:
                raise InvalidRequest(_UNKNOWN, param=_FIELD, code="unsupported_parameter")
            self._spelling = backend
        self._timed = with_metrics
        self._clock = clock
        self._turns = turn_usages
        self._times: list[float] = []

    def resume(self, point: ResumePoint) -> Reply:
        self._reply = self._reply.resume(point)
        return self

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        self._times = [self._clock()]
        async with aclosing(self._reply.deltas()) as deltas:
            async for known in deltas:
                if len(self._times) == 1:
                    self._times.append(self._clock())
                yield known
        self._times.append(self._clock())

    def final_fields(self, sampled: array[int]) -> Mapping[str, Any]:
        """Fields of the response, once the reply is over. ``sampled``: the ids of its output.
        Raises ``RunError`` where messages cannot be told after all."""
        said: dict[str, Any] = {}
        if self._spelling is not None:
            if (
                kept := self.prompt_tokens
            ) is None:  # known only now: the model was still being loaded
                raise RunError(_UNKNOWN, param=_FIELD, code="unsupported_parameter")
            prompt, sampled = last_turn(kept.ids, sampled)
            said["input_messages"] = (_message(self._spelling, prompt),)
            said["output_messages"] = (_message(self._spelling, sampled),)
        if self._timed and len(self._times) == 3:
            begun, first, ended = self._times
            said["metrics"] = {
                "time_to_first_token_ms": round((first - begun) * 1000, 3),
                "generation_time_ms": round((ended - first) * 1000, 3),
                "total_time_ms": round((ended - begun) * 1000, 3),
                **_per_turn(self._turns),
            }
        return said


def _per_turn(turns: Sequence[Usage]) -> dict[str, list[int]]:
    """What each turn of a reply in which tools ran used. What a turn was given that the one before
    it neither saw nor wrote came of tools."""
    if not turns:
        return {}
    before = (None, *turns[:-1])
    return {
        "input_tokens_per_turn": [turn.input_tokens for turn in turns],
        "cached_tokens_per_turn": [turn.input_tokens_details.cached_tokens for turn in turns],
        "output_tokens_per_turn": [turn.output_tokens for turn in turns],
        "tool_output_tokens_per_turn": [
            0 if last is None else max(0, turn.input_tokens - last.total_tokens)
            for last, turn in zip(before, turns, strict=True)
        ],
    }


def _message(spelling: Backend, ids: Sequence[int]) -> dict[str, Any]:
    return {"type": "raw_message_tokens", "message": spelling.detokenize(ids), "tokens": list(ids)}
