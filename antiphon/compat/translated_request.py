"""A request of another API than the Responses API, translated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.wire.events import Event
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.json_body import BodyLimits
from antiphon.wire.parsing.requests import read_create
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import OmittedPart, Response

from .error_paths import ErrorPaths

_encode = msgspec.json.Encoder().encode


def sse_frame(value: object) -> bytes:
    """Return a value as a frame of a ``text/event-stream``."""
    return b"data: " + _encode(value) + b"\n\n"


class ChoiceStream:
    """Base class of the streams of an API. It encodes the events of one choice, which is one answer
    to a request."""

    def frames(self, events: Iterable[Event]) -> bytes:
        """Return the events in the form of the API. Returns b"" if they produce no frame."""
        return b"".join(frame for event in events for frame in self._frames(event))

    def usage_frame(self, responses: Sequence[Response]) -> bytes:
        """Return what follows the frames of all choices, such as the total usage of ``responses``.
        Returns b"" if nothing follows them."""
        return b""

    def _frames(self, event: Event) -> Iterator[bytes]:
        """Yield the frames of one event."""
        raise NotImplementedError


class TranslatedRequest(Struct, frozen=True, kw_only=True):
    """A translated request. A client may ask for several answers, which OpenAI's API calls choices.

    ``requests``: one Responses request for each choice. ``paths``: the path of a field of these
    requests → the path of the field that the client wrote, for error messages.
    """

    requests: tuple[CreateResponse, ...]
    paths: ErrorPaths

    @property
    def request(self) -> CreateResponse:
        """The request of the first choice, which most requests have alone."""
        return self.requests[0]

    @property
    def stream(self) -> bool:
        return bool(self.request.stream)

    def with_trace(self, headers: Mapping[str, str]) -> Self:
        """Return a copy of the request with the given headers of a W3C trace context, such as
        ``traceparent``."""
        traced = tuple(replace(request, trace=dict(headers)) for request in self.requests)
        return replace(self, requests=traced)

    def omitted_parts(self, response: Response) -> tuple[OmittedPart, ...]:
        """Return the parts of the request that the model cannot read, with the paths that the
        client wrote."""
        return tuple(
            replace(part, param=self.paths.client_path(part.param))
            for part in response.omitted_parts or ()
        )

    def answer(self, responses: Sequence[Response]) -> Any:
        """Return the body of the answer. ``responses``: the finished responses to ``requests``,
        none of which failed."""
        raise NotImplementedError

    def choice_stream(self, first: Response, index: int) -> ChoiceStream:
        """Return an encoder for the stream of one choice. ``first``: the response of the first
        choice, which determines the id of the answer."""
        raise NotImplementedError


def merge_fields(fields: JsonObject, more: JsonObject) -> None:
    """Add the translated fields ``more`` to the Responses request ``fields``. If both have an
    object under the same name, merge the two objects: several fields of another API can become
    parts of one Responses field, such as ``text``."""
    for name, value in more.items():
        known = fields.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            value = {**known, **value}
        fields[name] = value


def read_translated(fields: JsonObject, paths: ErrorPaths, limits: BodyLimits) -> CreateResponse:
    """Read the Responses request to which a request was translated. Raises ``InvalidRequest`` with
    the path of the field as the client wrote it."""
    try:
        return read_create(fields, limits)
    except InvalidRequest as error:
        paths.translate(error)
        raise


def with_seed_offset(request: CreateResponse, offset: int) -> CreateResponse:
    """Return the request of one choice: its seed is the client's seed plus ``offset``, so each
    choice has a different seed. If the sum is too large for signed 64 bits, it wraps around. A
    request without a seed is returned unchanged."""
    seed = request.seed
    if seed is None or not offset:
        return request
    return replace(request, seed=(seed + offset + 2**63) % 2**64 - 2**63)
