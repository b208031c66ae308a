"""The receiving side of RPC. It runs the methods of an object that other processes call."""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
import structlog

from antiphon.errors import AntiphonError, BackendError

from .messages import CallMessage, MessageKind, encode, error_message

_log = structlog.get_logger(__name__)


class Method:
    """A method that other processes may call, with the types of its arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = function.__name__
        self.is_stream = inspect.isasyncgenfunction(function)
        self.is_plain = not self.is_stream and not inspect.iscoroutinefunction(function)
        hints = typing.get_type_hints(function)
        hints.pop("return", None)
        self.decode: Callable[[bytes], tuple[Any, ...]] = msgspec.msgpack.Decoder(
            tuple[tuple(hints.values())] if hints else tuple[()]  # type: ignore[misc]
        ).decode

    async def answers(
        self, call: int, arguments: tuple[object, ...]
    ) -> AsyncGenerator[bytes, None]:
        """Run the method and yield its encoded answers: the items if the method is an async
        generator, then the result or the error. ``call``: the number of the call."""
        try:
            result = None
            if self.is_stream:
                async with aclosing(self.function(*arguments)) as items:
                    async for item in items:
                        yield encode((MessageKind.ITEM, call, "", item))
            else:
                result = self.function(*arguments)
                result = result if self.is_plain else await result
            yield encode((MessageKind.RESULT, call, "", result))
        except Exception as error:
            yield error_message(call, error_for_caller(self.name, error))


class CallableMethods:
    """The public methods of an object, which other processes may call. ``target``: the object."""

    def __init__(self, target: object) -> None:
        self._target = target
        self._methods: dict[str, Method] = {}

    def find(self, name: str) -> Method:
        """Return the method with this name. Raises ``AttributeError`` if there is no such method,
        or if other processes may not call it."""
        method = self._methods.get(name)
        if method is None:
            if name.startswith("_") or name == "on_disconnect":
                raise AttributeError(name)
            method = self._methods[name] = Method(getattr(self._target, name))
        return method

    async def answers(self, message: CallMessage) -> AsyncGenerator[bytes, None]:
        """Run the method that a call names. Yields the encoded answers, like ``Method.answers``."""
        try:
            method = self.find(message.method)
            arguments = method.decode(message.payload)
        except (AttributeError, msgspec.MsgspecError) as error:
            yield error_message(message.call, error_for_caller(message.method, error))
            return
        async with aclosing(method.answers(message.call, arguments)) as answers:
            async for answer in answers:
                yield answer


def error_for_caller(method: str, error: Exception) -> AntiphonError:
    """Return the error to send to the caller. An ``AntiphonError`` is sent as it is. Any other
    error is logged, and the caller gets a general error."""
    if isinstance(error, AntiphonError):
        return error
    _log.error("a call of another process failed", method=method, exc_info=error)
    return BackendError("An internal error occurred.")
