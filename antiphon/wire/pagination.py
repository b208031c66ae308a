"""Small answers that many endpoints share: pages of lists, deletions, token counts."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from msgspec import Struct

__all__ = ["DeletedObject", "InputTokensCount", "Page"]

_T = TypeVar("_T")


class Page(Struct, Generic[_T], frozen=True, kw_only=True):
    """A page of a list. ``last_id``: the value of ``after`` for the request of the next page."""

    object: Literal["list"] = "list"
    data: tuple[_T, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedObject(Struct, frozen=True, kw_only=True):
    """The answer to a request that deleted an object. ``object``: the type of the deleted object,
    such as ``file``. As in OpenAI's API, the names of most types get the ending ``.deleted`` here,
    such as ``conversation.deleted``."""

    id: str
    object: str
    deleted: Literal[True] = True


class InputTokensCount(Struct, frozen=True, kw_only=True):
    """The answer to ``POST /responses/input_tokens``: the number of tokens that the model would
    see."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
