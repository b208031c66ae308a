"""Compaction by itself: the body of ``POST /responses/compact`` and what answers it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from .items import CompactionTrigger, Item
from .request import CreateResponse
from .response import Usage

__all__ = ["Compact", "CompactedResponse"]

Json = dict[str, Any]
_Key = Annotated[str, Meta(max_length=256)]


class Compact(Struct, frozen=True, kw_only=True):
    """A conversation that is to be compacted: ``input``, behind what ``previous_response_id``
    stands for. The other fields mean what they mean in ``CreateResponse``."""

    model: _Key
    input: tuple[Item, ...] | None = None
    instructions: str | None = None
    previous_response_id: _Key | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_options: Json | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    service_tier: Literal["auto", "default", "fast", "flex", "priority"] | None = None
    image: Json | None = None

    def as_create(self) -> CreateResponse:
        """The request for a response that asks for the same: nothing of it is stored."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        items = self.input or ()
        if not (items and isinstance(items[-1], CompactionTrigger)):
            items = (*items, CompactionTrigger())
        return CreateResponse(**{**fields, "input": items, "store": False})


class CompactedResponse(Struct, frozen=True, kw_only=True):
    """The conversation as it is to be sent from now on: ``output`` is the next request's input."""

    id: str
    created_at: int
    output: tuple[Item, ...]
    usage: Usage
    object: Literal["response.compaction"] = "response.compaction"
