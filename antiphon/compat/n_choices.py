"""Read the number of choices of a request, and give each choice a seed of its own."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.wire.parsing.errors import invalid_type, json_type_name, out_of_range
from antiphon.wire.request import CreateResponse


def read_choice_count(raw: object, path: str, limit: int) -> int:
    """Validate the number of choices, which must be from 1 to ``limit``. Raises
    ``InvalidRequest``."""
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise invalid_type(path, "an integer", json_type_name(raw))
    if raw < 1:
        raise out_of_range(path, "integer", raw, ">=", "1")
    if raw > limit:
        raise out_of_range(path, "integer", raw, "<=", str(limit))
    return raw


def with_seed_offset(request: CreateResponse, offset: int) -> CreateResponse:
    """Return the request of one choice: its seed is the client's seed plus ``offset``, so each
    choice has a different seed. If the sum is too large for signed 64 bits, it wraps around. A
    request without a seed is returned unchanged."""
    seed = request.seed
    if seed is None or not offset:
        return request
    return replace(request, seed=(seed + offset + 2**63) % 2**64 - 2**63)
