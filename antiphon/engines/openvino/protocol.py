"""The messages between the OpenVINO engine and its worker process.

Messages are sent in frames. A frame is the length of the payload (four bytes, little-endian) and
the payload: a list of messages in MessagePack.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

LENGTH_PREFIX = struct.Struct("<I")


class _Message(Struct, frozen=True, array_like=True, tag=True):
    pass


class GenerateRequest(_Message, frozen=True):
    """A request to generate the tokens after the prompt ``ids``, a list of token ids.

    ``id``: number of the request, which later messages repeat. ``config``: attributes of OpenVINO's
    ``GenerationConfig``. ``grammar``: the grammar of the output in xgrammar's EBNF, or None.
    """

    id: int
    ids: list[int]
    config: dict[str, Any]
    grammar: str | None = None


class CancelRequest(_Message, frozen=True):
    id: int


class LoadResult(_Message, frozen=True):
    """The first message of the worker. If ``problem`` is empty, the model is loaded. If not,
    ``problem`` is the reason why loading failed."""

    problem: str = ""


class SampledTokensMessage(_Message, frozen=True):
    """New tokens of the request ``id``. ``logprobs``: one log-probability for each of ``ids``."""

    id: int
    ids: list[int]
    logprobs: list[float]


class GenerationEnd(_Message, frozen=True):
    """The generation of the request ``id`` ended. ``reason``: ``stop``, ``length``, or the name of
    another status of OpenVINO."""

    id: int
    reason: str


class GenerationFailed(_Message, frozen=True):
    """The generation of the request ``id`` did not start. ``problem``: the reason. ``invalid``:
    whether the client gets an error about an invalid request. It is True if the request has a
    grammar, because the grammar is then the likely cause."""

    id: int
    problem: str
    invalid: bool


ToWorker = GenerateRequest | CancelRequest
ToParent = LoadResult | SampledTokensMessage | GenerationEnd | GenerationFailed

_encode = msgspec.msgpack.Encoder().encode
unpack_for_worker = msgspec.msgpack.Decoder(list[ToWorker]).decode
unpack_for_parent = msgspec.msgpack.Decoder(list[ToParent]).decode


def pack(messages: Sequence[ToWorker | ToParent]) -> bytes:
    body = _encode(messages)
    return LENGTH_PREFIX.pack(len(body)) + body


def payload_size(head: bytes) -> int:
    """Return the length of a frame's payload in bytes. ``head``: the first four bytes of the
    frame."""
    size: int = LENGTH_PREFIX.unpack(head)[0]
    return size
