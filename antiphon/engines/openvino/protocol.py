"""Messages between the OpenVINO engine and its worker process: msgpack in frames.

A frame is its length (four bytes, little-endian) and a list of messages.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

__all__ = [
    "CancelRequest",
    "Finished",
    "GenerateRequest",
    "GenerationFailed",
    "Ready",
    "Sampled",
    "ToParent",
    "ToWorker",
    "pack",
    "payload_size",
    "unpack_for_parent",
    "unpack_for_worker",
]

LENGTH_PREFIX = struct.Struct("<I")


class _Message(Struct, frozen=True, array_like=True, tag=True):
    pass


class GenerateRequest(_Message, frozen=True):
    """Continue ``ids``.

    ``config``: attributes of OpenVINO's ``GenerationConfig``. ``grammar``: the grammar of the
    output in xgrammar's EBNF.
    """

    id: int
    ids: list[int]
    config: dict[str, Any]
    grammar: str | None = None


class CancelRequest(_Message, frozen=True):
    id: int


class Ready(_Message, frozen=True):
    """The model was loaded. If ``problem`` is not empty, loading failed for this reason."""

    problem: str = ""


class Sampled(_Message, frozen=True):
    """New tokens; ``logprobs`` is as long as ``ids``."""

    id: int
    ids: list[int]
    logprobs: list[float]


class Finished(_Message, frozen=True):
    """The generation ended. ``reason``: ``stop``, ``length`` or OpenVINO's status."""

    id: int
    reason: str


class GenerationFailed(_Message, frozen=True):
    """The generation did not start. ``invalid``: whether the request is the cause."""

    id: int
    problem: str
    invalid: bool


ToWorker = GenerateRequest | CancelRequest
ToParent = Ready | Sampled | Finished | GenerationFailed

_encode = msgspec.msgpack.Encoder().encode
unpack_for_worker = msgspec.msgpack.Decoder(list[ToWorker]).decode
unpack_for_parent = msgspec.msgpack.Decoder(list[ToParent]).decode


def pack(messages: Sequence[ToWorker | ToParent]) -> bytes:
    body = _encode(messages)
    return LENGTH_PREFIX.pack(len(body)) + body


def payload_size(head: bytes) -> int:
    """Return the payload's length in bytes from a frame's header."""
    size: int = LENGTH_PREFIX.unpack(head)[0]
    return size
