"""Steering of the responses of a WebSocket: the input that waits for the end of one response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.runs.execution.run import Run
from antiphon.runs.execution.steering import (
    already_completed,
    check_room,
    check_steerable,
    required_input,
)
from antiphon.wire.events import (
    Event,
    Steer,
    SteerAccepted,
    SteerError,
    SteerFailed,
    SteerPending,
)
from antiphon.wire.items import Item
from antiphon.wire.json_types import JsonObject
from antiphon.wire.request import CreateResponse
from antiphon.wire.steering import PendingSteering

#: The error codes of refused submissions. All other refusals are about the input.
_CODES = (
    "response_already_completed",
    "response_not_found",
    "steering_not_supported",
    "too_many_pending_steers",
)


class _Submission(Struct, frozen=True):
    """Accepted input. ``raw``: the input as the client sent it. ``size``: bytes of its frame."""

    id: str
    input: tuple[Item, ...]
    raw: Any
    size: int


class LaneSteering:
    """The steering of one response, from its creation until a further response continues it.

    ``request``: the request of the response, from which its successor gets all settings.
    """

    def __init__(self, run: Run, request: CreateResponse) -> None:
        self._run = run
        self._request = request
        self.response_id = run.id
        self._submissions: list[_Submission] = []
        #: Stubs of the items that the client has to send, if the response has ended with calls
        #: that the client must answer. The input waits for them.
        self.required_input: tuple[JsonObject, ...] = ()

    @property
    def continued_id(self) -> str | None:
        """The id of the response that this response continues."""
        return self._request.previous_response_id

    @property
    def input_bytes(self) -> int:
        """The size of the input that waits for a successor of the response."""
        return sum(each.size for each in self._submissions)

    @property
    def is_waiting(self) -> bool:
        """Whether the response has ended, and its input waits for the next request of the
        client."""
        return bool(self.required_input)

    def accept(
        self, raw: Any, input: Sequence[Item], size: int, ids: Callable[[str], str]
    ) -> tuple[Event, ...]:
        """Accept input, whose frame has ``size`` bytes, and return the events that tell the client
        so. Raises ``InvalidRequest``."""
        check_steerable(self._run.response)
        check_room(self.response_id, len(self._submissions), self.input_bytes)
        if not (self.is_waiting or self._run.steer()):
            raise already_completed(self.response_id)
        identified = tuple(replace(item, id=ids("msg")) for item in input)
        submission = _Submission(ids("steer"), identified, raw, size)
        self._submissions.append(submission)
        accepted = SteerAccepted(
            sequence_number=self._run.take_number(), steer=self._steer(submission)
        )
        return (accepted, self._pending_event(submission)) if self.is_waiting else (accepted,)

    def end(self) -> tuple[Event, ...]:
        """Note that the response has ended. Return the events that follow its last event: input
        waits if the client must answer calls, and fails if the response cannot be continued."""
        response = self._run.response
        if response.status not in ("completed", "incomplete"):
            return self.fail("response_not_active", f"The response is {response.status}.")
        self.required_input = required_input(response.output) if self._submissions else ()
        return tuple(map(self._pending_event, self._submissions)) if self.is_waiting else ()

    def fail(self, code: str, message: str) -> tuple[Event, ...]:
        """Return all accepted input to the client. Returns the events that do this."""
        failed, self._submissions = self._submissions, []
        return tuple(
            SteerFailed(
                sequence_number=self._run.take_number(),
                error=SteerError(code=code, message=message),
                steer=replace(self._steer(each), input=each.raw),
            )
            for each in failed
        )

    @property
    def pending(self) -> PendingSteering:
        """The input that waits for the next request."""
        return PendingSteering(
            required_input=self.required_input,
            steers=tuple(each.id for each in self._submissions),
            input=self._input,
        )

    @property
    def successor(self) -> CreateResponse:
        """The request for the successor of the response."""
        request = replace(self._request, previous_response_id=self.response_id, input=self._input)
        if (options := request.prompt_cache_options) is None:
            return request
        return replace(request, prompt_cache_options=replace(options, prewarm=False))

    @property
    def _input(self) -> tuple[Item, ...]:
        return tuple(item for each in self._submissions for item in each.input)

    def _steer(self, submission: _Submission) -> Steer:
        return Steer(id=submission.id, previous_response_id=self.response_id)

    def _pending_event(self, submission: _Submission) -> Event:
        return SteerPending(
            sequence_number=self._run.take_number(),
            steer=self._steer(submission),
            reason="waiting_for_required_input",
            required_input=self.required_input,
        )


def refused_steer(response_id: str, raw: Any, error: InvalidRequest) -> Event:
    """Return the event that refuses input and returns it to the client. ``raw``: the input as the
    client sent it."""
    code = error.code if error.code in _CODES else "invalid_input"
    return SteerFailed(
        sequence_number=0,
        error=SteerError(code=code, message=error.message),
        steer=Steer(previous_response_id=response_id, input=raw),
    )
