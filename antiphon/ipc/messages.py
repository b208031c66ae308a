"""The messages of RPC calls between processes: the call itself, an item that the called method
yields, its result, or its error."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec
from msgspec import Struct

from antiphon import errors
from antiphon.errors import AntiphonError
from antiphon.support.fair_threads import current_tenant

encode = msgspec.msgpack.Encoder().encode


class MessageKind(IntEnum):
    """The kind of a message. ``CALL``: call a method. ``NOTICE``: call a method that sends no
    answer. ``RESULT``: the result of a call. ``ITEM``: one of the items that a method yields.
    ``ERROR``: the error of a call. ``CANCEL``: cancel a call."""

    CALL = 0
    NOTICE = 1
    RESULT = 2
    ITEM = 3
    ERROR = 4
    CANCEL = 5


class CallMessage(Struct, frozen=True, array_like=True):
    """A message of an RPC call. ``call``: the number that the caller gave to the call. ``method``:
    the name of the method; only in calls and notices. ``payload``: the arguments as a list, or the
    result, the item or the error. ``tenant``: for whom the caller works, so that tenants take turns
    in the other process, too; only in calls."""

    kind: MessageKind
    call: int
    method: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"")
    tenant: str = ""


class _ErrorFields(Struct, frozen=True):
    """The encoded form of an error: class name, message and attributes."""

    name: str
    text: str
    fields: dict[str, Any] = {}


_decode_fields = msgspec.msgpack.Decoder(_ErrorFields).decode


def call_message(call: int, method: str, arguments: object) -> bytes:
    """Encode a call that this task makes. ``call``: the number of the call."""
    return encode((MessageKind.CALL, call, method, arguments, current_tenant.get()))


def error_message(call: int, error: AntiphonError) -> bytes:
    """Encode the message that reports the error of a call. The message includes the attributes of
    the error. ``call``: the number of the call."""
    fields = encode(_ErrorFields(type(error).__name__, str(error), vars(error)))
    return encode((MessageKind.ERROR, call, "", msgspec.Raw(fields)))


def decode_error(payload: bytes) -> AntiphonError:
    """Decode the error from the payload of a message that ``error_message`` has encoded."""
    given = _decode_fields(payload)
    kind = getattr(errors, given.name, errors.BackendError)
    error: AntiphonError = kind.__new__(kind)
    Exception.__init__(error, given.text)
    vars(error).update(given.fields)
    return error
