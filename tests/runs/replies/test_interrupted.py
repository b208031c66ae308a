"""Runs that begin a call of the model again after an interruption."""

from __future__ import annotations

import pytest

from antiphon.backends.base import Reply
from antiphon.errors import CannotContinue
from antiphon.inference.conversation import ResumePoint
from antiphon.runs.replies.interrupted import RestartedReply
from antiphon.wire import items as it


class RecordingReply(Reply):
    """A reply that records the point at which it is resumed."""

    input_tokens = 0

    def __init__(self) -> None:
        self.points: list[ResumePoint] = []

    def resume(self, point: ResumePoint) -> Reply:
        self.points.append(point)
        return self


MESSAGE = it.Message(role="assistant", content=())
CALL = it.FunctionCall(call_id="a", name="f", arguments="{}")


def test_asynchronous_call_stays_and_what_follows_is_written_again() -> None:
    reply = RecordingReply()
    call = it.FunctionCall(call_id="a", name="f", arguments="{}", async_=True)
    RestartedReply(reply, ResumePoint((), (), (call, it.Reasoning()), (MESSAGE,)))
    assert [(point.items, point.open_items) for point in reply.points] == [((call,), ())]


def test_call_for_which_the_model_waits_is_not_written_again() -> None:
    with pytest.raises(CannotContinue):
        RestartedReply(RecordingReply(), ResumePoint((), (), (CALL,), (MESSAGE,)))
