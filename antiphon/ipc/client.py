"""A client for RPC calls to another process. It has one connection to that process.

The first call opens the connection. If the connection is lost, the next call opens a new one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from antiphon.errors import AntiphonError, BackendError

from .frames import FrameConnection
from .messages import (
    CallMessage,
    MessageKind,
    call_message,
    decode_error,
    encode,
    error_message,
)

_decode = msgspec.msgpack.Decoder(CallMessage).decode


@lru_cache(maxsize=256)
def _decoder(kind: object) -> Callable[[bytes], Any]:
    return msgspec.msgpack.Decoder(kind).decode


class CallClient:
    """Calls the methods of an object in another process. Use the client from one event loop only.

    ``path``: the Unix socket at which the other process listens. ``on_lost``: creates the error to
    raise when the connection is lost or cannot be opened. ``wait_s``: seconds that a call waits for
    the other process if it does not listen yet.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_lost: Callable[[], AntiphonError] = lambda: BackendError("The connection is lost."),
        wait_s: float = 0.0,
    ) -> None:
        self._path = str(path)
        self._on_lost = on_lost
        self._wait_s = wait_s
        self._frames: FrameConnection | None = None
        self._opening = asyncio.Lock()
        self._calls = 0
        self._answers: dict[int, _Answers] = {}

    async def call(self, method: str, *arguments: object, returns: object = None) -> Any:
        """Call a method. Returns its result, decoded as the type ``returns``. If the task that
        waits for the result is cancelled, the call in the other process is cancelled too. Raises
        the error that the method raises. If the connection is lost, raises the error from
        ``on_lost``."""
        frames = await self._open()
        answers = self._begin(frames, method, arguments)
        try:
            message = await answers.next()
        except asyncio.CancelledError:
            self._cancel(answers)
            raise
        finally:
            del self._answers[answers.call]
        return _decoder(returns)(message.payload)

    async def stream(
        self, method: str, *arguments: object, returns: object
    ) -> AsyncGenerator[Any, None]:
        """Call a method that yields items. Yields the items, decoded as the type ``returns``.
        Closing the iterator cancels the call."""
        frames = await self._open()
        answers = self._begin(frames, method, arguments)
        decode = _decoder(returns)
        has_ended = False
        try:
            while (message := await answers.next()).kind is MessageKind.ITEM:
                yield decode(message.payload)
            has_ended = True
        finally:
            if not has_ended:
                self._cancel(answers)
            del self._answers[answers.call]

    async def forward(self, message: CallMessage) -> AsyncGenerator[bytes, None]:
        """Forward a call that another process has sent to this process, without decoding its
        arguments. The caller has set ``current_tenant`` to the tenant of the call.

        Yields the encoded answers: the items that the called method yields, then its result or its
        error. Closing the iterator cancels the call.
        """
        try:
            frames = await self._open()
            answers = self._begin(frames, message.method, message.payload)
        except AntiphonError as error:
            yield error_message(message.call, error)
            return
        try:
            while True:
                try:
                    answer = await answers.next()
                except AntiphonError as error:
                    yield error_message(message.call, error)
                    return
                yield encode((answer.kind, message.call, "", answer.payload))
                if answer.kind is not MessageKind.ITEM:
                    return
        finally:
            self._cancel(answers)
            del self._answers[answers.call]

    def notify(self, method: str, *arguments: object) -> None:
        """Call a method whose result is not needed. The other process sends no answer. The call is
        dropped if the connection is not open."""
        if self._frames is not None:
            self._frames.send(encode((MessageKind.NOTICE, 0, method, arguments)))

    async def connect(self) -> None:
        """Open the connection now, instead of at the first call. If the other process does not
        listen, raises an error, which the function ``on_lost`` of this client creates."""
        await self._open()

    def close(self) -> None:
        """Close the connection. Unfinished calls raise the error that ``on_lost`` creates."""
        if self._frames is not None:
            self._frames.close()

    # --- private ---------------------------------------------------------------------------------

    async def _open(self) -> FrameConnection:
        if self._frames is not None and self._frames.is_open:
            return self._frames
        async with self._opening:
            if self._frames is None or not self._frames.is_open:
                self._frames = await self._connect()
            return self._frames

    async def _connect(self) -> FrameConnection:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_s
        while True:
            try:
                return await self._connect_once(loop)
            except OSError:
                if loop.time() >= deadline:
                    raise self._on_lost() from None
                await asyncio.sleep(0.05)

    async def _connect_once(self, loop: asyncio.AbstractEventLoop) -> FrameConnection:
        def on_closed() -> None:
            for answers in self._answers.values():
                if answers.frames is frames:
                    answers.fail(self._on_lost())

        frames = FrameConnection(self._on_frame, on_closed)
        await loop.create_unix_connection(lambda: frames, self._path)
        return frames

    def _begin(self, frames: FrameConnection, method: str, arguments: object) -> _Answers:
        self._calls += 1
        answers = self._answers[self._calls] = _Answers(self._calls, frames)
        frames.send(call_message(self._calls, method, arguments))
        return answers

    def _cancel(self, answers: _Answers) -> None:
        if not answers.has_ended:
            answers.frames.send(encode((MessageKind.CANCEL, answers.call, "", None)))

    def _on_frame(self, frame: bytes) -> None:
        message = _decode(frame)
        answers = self._answers.get(message.call)
        if answers is not None:
            answers.add(message)


class _Answers:
    """The answers to one RPC call that have arrived and that the caller has not read yet."""

    __slots__ = ("_error", "_messages", "_waiter", "call", "frames", "has_ended")

    def __init__(self, call: int, frames: FrameConnection) -> None:
        self.call = call
        #: The connection of the call.
        self.frames = frames
        #: Set when the last answer has arrived, or when the connection is lost.
        self.has_ended = False
        self._messages: deque[CallMessage] = deque()
        self._error: AntiphonError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def add(self, message: CallMessage) -> None:
        self.has_ended = message.kind is not MessageKind.ITEM
        self._messages.append(message)
        self._wake()

    def fail(self, error: AntiphonError) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._error = error
            self._wake()

    async def next(self) -> CallMessage:
        """Wait for the next answer and return it. An answer contains an item or the result of the
        call. If the call has failed, raise its error."""
        while not self._messages:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        message = self._messages.popleft()
        if message.kind is MessageKind.ERROR:
            raise decode_error(message.payload)
        return message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
