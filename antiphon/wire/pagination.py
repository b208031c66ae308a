"""Small answers: pages of lists, what was deleted, how many tokens."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from msgspec import Struct

__all__ = ["Deleted", "InputTokensCount", "Page"]

_T = TypeVar("_T")


class Page(Struct, Generic[_T], frozen=True, kw_only=True):
    """A part of a list. ``last_id`` is where the next page goes on."""

    object: Literal["list"] = "list"
    data: tuple[_T, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(Struct, frozen=True, kw_only=True):
    """What is gone. ``object`` is what it was: ``response``, ``conversation.deleted`` …"""

    id: str
    object: str
    deleted: Literal[True] = True


class InputTokensCount(Struct, frozen=True, kw_only=True):
    """How many tokens the model would see."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
