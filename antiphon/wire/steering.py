"""Types of steering: a client gives a response that is in progress further input. The response then
ends early, and a successor continues it with this input."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from .items import Item
from .json_types import JsonObject
from .parts import InputFile, InputImage, InputText

__all__ = [
    "PendingSteering",
    "SteerRequest",
    "SteeringMessage",
    "SteeringPart",
    "SteeringSubmission",
]

#: The parts that messages with steering input may have.
SteeringPart = InputText | InputImage | InputFile


class SteeringMessage(Struct, frozen=True, kw_only=True):
    """A message of the user that steers a response."""

    role: Literal["user"]
    content: str | tuple[SteeringPart, ...]
    type: Literal["message"] = "message"


class SteerRequest(Struct, frozen=True, kw_only=True):
    """The body of ``POST /v1/responses/{response_id}/steer``."""

    input: (
        Annotated[str, Meta(min_length=1)]
        | Annotated[tuple[SteeringMessage, ...], Meta(min_length=1)]
    )


class SteeringSubmission(Struct, frozen=True, kw_only=True):
    """Steering input that the server has accepted. ``successor_id``: the id of the response that
    will continue the steered response with this input. All submissions for one response have the
    same successor. It does not exist before the steered response has ended."""

    id: str
    previous_response_id: str
    successor_id: str
    object: Literal["response.steer"] = "response.steer"


class PendingSteering(Struct, frozen=True, kw_only=True):
    """Steering input that waits, because the response has ended with calls that the client must
    answer. The next response that continues this one gets ``input`` before its own input.

    ``required_input``: stubs of the items that this next request must contain. ``steers``: the ids
    of the submissions.
    """

    required_input: tuple[JsonObject, ...]
    steers: tuple[str, ...]
    input: tuple[Item, ...]
    reason: Literal["waiting_for_required_input"] = "waiting_for_required_input"
