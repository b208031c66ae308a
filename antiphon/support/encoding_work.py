"""Bounds of the work of tokenizers.

To encode a text of some megabytes takes many seconds. When its client has left, nobody needs the
token ids. When they exceed the context of the model, the request is refused. So tokenizers encode
long texts in windows, and call ``count_ids`` after each window.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import ParamSpec, TypeVar

from antiphon.errors import context_length_exceeded

#: Longer texts are encoded in windows of this many characters.
WINDOW_CHARS = 50_000
#: A space between two letters. Vocabularies with words begin a word there, so the ids of a window
#: that ends there are the same as in the whole text.
_WORD_START = re.compile("(?<=[A-Za-z]) (?=[A-Za-z])")

_P = ParamSpec("_P")
_T = TypeVar("_T")


class EncodingCancelled(Exception):
    """Nobody waits for the token ids any more."""


class _Work:
    """Work for one request, on one thread."""

    __slots__ = ("is_cancelled", "left")

    def __init__(self) -> None:
        self.is_cancelled = False
        #: How many further ids may be made; None for any number.
        self.left: int | None = None


_work: ContextVar[_Work | None] = ContextVar("encoding_work", default=None)


async def encode_in_thread(
    function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Call a function that encodes texts on a thread. If the caller is cancelled, the function ends
    after the current window."""
    work = _Work()
    token = _work.set(work)
    try:
        return await asyncio.to_thread(partial(function, *args, **kwargs))
    except asyncio.CancelledError:
        work.is_cancelled = True
        raise
    finally:
        _work.reset(token)


@contextmanager
def limit_ids(limit: int) -> Iterator[None]:
    """Let ``count_ids`` refuse the request after more than ``limit`` ids. Without effect outside of
    ``encode_in_thread``."""
    work = _work.get()
    if work is None:
        yield
        return
    work.left = limit
    try:
        yield
    finally:
        work.left = None


def count_ids(count: int) -> None:
    """Count the ids of a window. Raises ``InvalidRequest`` if there are too many, and
    ``EncodingCancelled``."""
    work = _work.get()
    if work is None:
        return
    if work.is_cancelled:
        raise EncodingCancelled
    if work.left is not None:
        work.left -= count
        if work.left < 0:
            raise context_length_exceeded()


def windows(text: str, chars: int | None = None, *, cuts: bool = False) -> Iterator[str]:
    """Yield a text in windows of bounded work, with the same ids in a vocabulary with words.

    ``chars``: the size of a window, which is at most exceeded twofold. ``cuts``: whether a text
    without a space between letters is cut anywhere. Otherwise, it is one window.
    """
    chars = chars or WINDOW_CHARS
    start = 0
    while len(text) - start > 2 * chars:
        most = start + 2 * chars if cuts else len(text)
        if (space := _WORD_START.search(text, start + chars, most)) is None and not cuts:
            break
        end = most if space is None else space.start()
        yield text[start:end]
        start = end
    yield text[start:]
