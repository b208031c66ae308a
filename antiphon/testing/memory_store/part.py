"""What the parts of the memory store have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any


class Part:
    """A part of a store, whose public coroutines first call ``check``. It raises ``StoreError`` if
    the store is closed."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in tuple(vars(cls).items()):
            if iscoroutinefunction(method) and not name.startswith("_") and name != "close":
                setattr(cls, name, _checked(method))


def _checked(method: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    @wraps(method)
    async def checked(part: Any, *arguments: object, **options: object) -> object:
        part._check()
        return await method(part, *arguments, **options)

    return checked
