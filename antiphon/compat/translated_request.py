"""A request of another API than the Responses API, translated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from antiphon.wire.events import Event
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import OmittedPart, Response

from .error_paths import ErrorPaths


class ChoiceStream(Protocol):
    """Encodes the events of one choice for a stream. A choice is one answer to a request."""

    def frames(self, events: tuple[Event, ...]) -> bytes: ...
    def usage_frame(self, responses: Sequence[Response]) -> bytes: ...


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


def with_seed_offset(request: CreateResponse, offset: int) -> CreateResponse:
    """Return the request of one choice: its seed is the client's seed plus ``offset``, so each
    choice has a different seed. If the sum is too large for signed 64 bits, it wraps around. A
    request without a seed is returned unchanged."""
    seed = request.seed
    if seed is None or not offset:
        return request
    return replace(request, seed=(seed + offset + 2**63) % 2**64 - 2**63)
