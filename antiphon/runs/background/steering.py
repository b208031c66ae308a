"""Steering of background runs: the input that clients queue in the store, and the run that
continues a steered run with it.

The process that executes the run learns of the input at once if it has accepted it, otherwise with
its next heartbeat, and ends the run early. The end of the run and the creation of its successor are
one transaction of the store, which takes all input into account. The successor is prepared by the
process that claims it, so its creation cannot fail because of its input.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import StoreError
from antiphon.runs.dependencies import RunDependencies
from antiphon.runs.execution.steering import (
    already_completed,
    check_room,
    required_input,
)
from antiphon.runs.request.initial_response import initial_response
from antiphon.store.records import Job, NewRun, RunEnd, Steering, StoredResponse
from antiphon.store.runs import RunStore
from antiphon.stream.writer import ResponseWriter
from antiphon.wire.items import Item
from antiphon.wire.response import Response
from antiphon.wire.steering import PendingSteering, SteeringSubmission

from .event_codec import decode_events, encode_batch
from .stored_request import StoredRequest

_encode = msgspec.json.Encoder().encode


class _Submission(Struct, frozen=True):
    id: str
    input: tuple[Item, ...]


class QueuedSteering(Struct, frozen=True):
    """The submissions for a run that has not ended. ``successor_id``: the id of the response that
    will continue it."""

    successor_id: str
    submissions: tuple[_Submission, ...] = ()

    @property
    def input(self) -> tuple[Item, ...]:
        """The input of all submissions, in their order."""
        return tuple(item for each in self.submissions for item in each.input)


_decode = msgspec.json.Decoder(QueuedSteering).decode


class Steerer:
    """Queues steering input for the background runs of a store, and makes their successors."""

    def __init__(self, dependencies: RunDependencies) -> None:
        self._dependencies = dependencies
        self._runs: RunStore = dependencies.store.runs

    async def steer(
        self, tenant: str, response_id: str, input: tuple[Item, ...]
    ) -> SteeringSubmission:
        """Queue input for a run. Raises ``InvalidRequest`` if the run has ended, or if too much
        input is queued. Raises ``StoreError``."""
        ids = self._dependencies.ids
        steer_id = ids("steer")
        input = tuple(replace(item, id=ids("msg")) for item in input)
        while True:
            steering = await self._runs.steering(tenant, response_id)
            if steering is None:
                raise already_completed(response_id)
            queued = _decode(steering.body) if steering.body else QueuedSteering(ids("resp"))
            check_room(response_id, len(queued.submissions), len(steering.body))
            submissions = (*queued.submissions, _Submission(steer_id, input))
            body = _encode(replace(queued, submissions=submissions))
            if await self._runs.steer(tenant, response_id, Steering(steering.count, body)):
                return SteeringSubmission(
                    id=steer_id,
                    previous_response_id=response_id,
                    successor_id=queued.successor_id,
                )

    async def is_steered(self, job: Job) -> bool:
        """Whether input is queued for a run. False if the store does not answer."""
        try:
            steering = await self._runs.steering(job.tenant, job.id)
        except StoreError:
            return False
        return steering is not None and steering.count > 0

    def conclude(self, job: Job, request: StoredRequest, end: RunEnd, steering: Steering) -> RunEnd:
        """Return the end of a run that was steered. It creates the successor of the run. If the run
        has ended with calls that the client must answer, the queued input becomes part of its
        response instead."""
        queued, response = _decode(steering.body), end.stored.response
        end = replace(end, steering_count=steering.count)
        if (pending := _pending(response, queued)) is not None:
            return _with_response(end, replace(response, pending_steering=pending))
        return replace(end, successor=self._successor(job, request, response, queued))

    def _successor(
        self, job: Job, request: StoredRequest, response: Response, queued: QueuedSteering
    ) -> NewRun:
        dependencies = self._dependencies
        request = replace(request, previous_response_id=response.id, input=None)
        successor = replace(
            initial_response(
                request,
                id=queued.successor_id,
                model=response.model,
                created_at=int(dependencies.clock()),
            ),
            status="queued",
        )
        writer = ResponseWriter(successor, ids=dependencies.ids, kinds=dependencies.kinds)
        writer.create()
        return NewRun(
            job=Job(
                tenant=job.tenant,
                id=successor.id,
                model=job.model,
                request=_encode(request),
            ),
            stored=StoredResponse(response=successor, input=queued.input),
            batch=encode_batch(writer.take(), at=dependencies.clock()),
            api_key=request.api_key or "",
        )


def _with_response(end: RunEnd, response: Response) -> RunEnd:
    """Return the end of a run with another final response, which its last event contains, too."""
    rows = tuple(end.batch.rows)
    *events, last = decode_events(rows)
    events.append(replace(last, response=response))
    batch = encode_batch(events, b"".join(row.tokens for row in rows), at=rows[-1].at)
    return replace(end, stored=replace(end.stored, response=response), batch=batch)


def _pending(response: Response, queued: QueuedSteering) -> PendingSteering | None:
    """Return the input that waits because the client must answer calls of the response. Returns
    None if there are no such calls, or if the response cannot be continued."""
    required = required_input(response.output)
    if not required or response.status not in ("completed", "incomplete"):
        return None
    return PendingSteering(
        required_input=required,
        steers=tuple(each.id for each in queued.submissions),
        input=queued.input,
    )
