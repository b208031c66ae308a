"""Where the tasks of a process wait at the moment of its crash, and where they can wait at all."""

from __future__ import annotations

import ast
import asyncio
import gc
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType
from typing import Any, NamedTuple

from tests.sources import PACKAGE

_DATABASE = str(Path(__file__).with_name("database.py"))


class CrashPoint(NamedTuple):
    """An await at which a process crashed. ``module``: its path in the package. ``phase``: whether
    it waits for a call of the store, and whether the call has taken effect."""

    module: str
    line: int
    phase: str

    def is_within(self, module: str, first: int, last: int) -> bool:
        """Whether the await is in these lines of a module."""
        return self.module == module and first <= self.line <= last


def crash_points(tasks: Iterable[asyncio.Task[Any]]) -> Iterator[CrashPoint]:
    """Yield the awaits of the package at which the tasks wait."""
    for task in tasks:
        if not task.done():
            frames = list(_frames(task.get_coro()))
            phase = next((_phase(frame) for frame in frames if _is_call(frame)), "")
            for frame in frames:
                path = Path(frame.f_code.co_filename)
                if path.is_relative_to(PACKAGE):
                    yield CrashPoint(str(path.relative_to(PACKAGE)), frame.f_lineno, phase)


def _is_call(frame: FrameType) -> bool:
    return frame.f_code.co_filename == _DATABASE and frame.f_code.co_name == "_call"


def _phase(frame: FrameType) -> str:
    return "has effect" if "result" in frame.f_locals else "no effect"


def _frames(awaited: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine, and of what it waits for."""
    while awaited is not None:
        if isinstance(awaited, CoroutineType):
            frame, following = awaited.cr_frame, awaited.cr_await
        elif isinstance(awaited, AsyncGeneratorType):
            frame, following = awaited.ag_frame, awaited.ag_await
        else:  # a step of a generator refers to it, but has no attribute for it
            referents = gc.get_referents(awaited) if "async_generator" in repr(awaited) else ()
            found = (each for each in referents if isinstance(each, AsyncGeneratorType))
            frame, following = None, next(found, None)
        if frame is not None:
            yield frame
        awaited = following


@cache
def awaits_of(module: str) -> tuple[tuple[int, int], ...]:
    """Return the first and the last line of each await in a module of the package."""
    lines: list[tuple[int, int]] = []
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, ast.Await):
            lines.append((node.lineno, node.end_lineno or 0))
        elif isinstance(node, ast.AsyncFor):
            lines.append((node.lineno, node.iter.end_lineno or 0))
        elif isinstance(node, ast.AsyncWith):
            lines.append((node.lineno, node.items[-1].context_expr.end_lineno or 0))
    return tuple(sorted(lines))
