"""What the OpenVINO engine and its child process say to each other: msgpack in frames.

A frame is its length (four bytes, little-endian) and a list of messages. It knows no OpenVINO.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

__all__ = [
    "Asked",
    "Cancelled",
    "Ended",
    "Failed",
    "Ready",
    "Sampled",
    "ToChild",
    "ToParent",
    "pack",
    "size_of",
    "unpack_for_child",
    "unpack_for_parent",
]

HEAD = struct.Struct("<I")


class _Message(Struct, frozen=True, array_like=True, tag=True):
    pass


class Asked(_Message, frozen=True):
    """Continue ``ids``. ``config``: attributes of OpenVINO's ``GenerationConfig``; ``schema``: JSON
    schema that the continuation is to follow, as text."""

    id: int
    ids: list[int]
    config: dict[str, Any]
    schema: str | None = None


class Cancelled(_Message, frozen=True):
    id: int


class Ready(_Message, frozen=True):
    """The model is loaded. Without it, there was a failure: ``problem``."""

    problem: str = ""


class Sampled(_Message, frozen=True):
    """New tokens; ``logprobs`` is as long as ``ids``."""

    id: int
    ids: list[int]
    logprobs: list[float]


class Ended(_Message, frozen=True):
    """There will be no more: ``reason`` is ``stop``, ``length`` or why it was not finished."""

    id: int
    reason: str


class Failed(_Message, frozen=True):
    """It was not begun. ``invalid``: for what was asked."""

    id: int
    problem: str
    invalid: bool


ToChild = Asked | Cancelled
ToParent = Ready | Sampled | Ended | Failed

_encode = msgspec.msgpack.Encoder().encode
unpack_for_child = msgspec.msgpack.Decoder(list[ToChild]).decode
unpack_for_parent = msgspec.msgpack.Decoder(list[ToParent]).decode


def pack(messages: Sequence[ToChild | ToParent]) -> bytes:
    body = _encode(messages)
    return HEAD.pack(len(body)) + body


def size_of(head: bytes) -> int:
    """How many bytes follow a frame's head."""
    size: int = HEAD.unpack(head)[0]
    return size
