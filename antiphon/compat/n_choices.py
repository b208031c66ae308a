"""Several answers to one request: how many, and what tells them apart."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from antiphon.wire.parsing.errors import bad_type, kind_of, out_of_range
from antiphon.wire.request import CreateResponse

__all__ = ["count", "reseeded"]


def count(raw: Any, path: str, most: int) -> int:
    """How many continuations. Raises ``InvalidRequest``."""
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise bad_type(path, "an integer", kind_of(raw))
    if raw < 1:
        raise out_of_range(path, "integer", raw, ">=", "1")
    if raw > most:
        raise out_of_range(path, "integer", raw, "<=", str(most))
    return raw


def reseeded(request: CreateResponse, by: int) -> CreateResponse:
    """One seed gives one answer: the others take the seeds that follow, round the 64 bits."""
    seed = request.seed
    if seed is None or not by:
        return request
    return replace(request, seed=(seed + by + 2**63) % 2**64 - 2**63)
