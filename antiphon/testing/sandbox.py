"""A sandbox without isolation, for tests of what stands around one: it "runs" code by a function of
the test. Never code that nobody has read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from antiphon.errors import ToolError
from antiphon.sandbox.base import Entry, Limits, Outcome, Told

__all__ = ["FakeBox", "FakeSandbox", "Runs"]

#: What is run, and the files of the box, which it may change → what came of it.
Runs = Callable[[str, dict[str, bytes]], Outcome]


class FakeBox:
    """``Box`` whose files lie in a dictionary."""

    def __init__(self, runs: Runs, limits: Limits) -> None:
        self._runs = runs
        self._limits = limits
        self.files: dict[str, bytes] = {}
        #: What it can read besides, by name.
        self.shared: dict[str, dict[str, bytes]] = {}
        self.is_alive = True
        #: What was run.
        self.ran: list[str] = []

    async def python(self, code: str, *, timeout_s: float, most: int) -> Outcome:
        return self._run(code)

    async def command(
        self, command: str, *, timeout_s: float, most: int, told: Told | None = None
    ) -> Outcome:
        outcome = self._run(command)
        if told is not None:
            for text in outcome.output.splitlines(keepends=True):
                told(text, "")
            if outcome.errors:
                told("", outcome.errors)
        return outcome

    async def entries(self) -> tuple[Entry, ...]:
        self._check()
        return tuple(
            Entry(path, len(content), hash(content)) for path, content in sorted(self.files.items())
        )

    async def read(self, path: str) -> bytes | None:
        self._check()
        return self.files.get(path)

    async def write(self, path: str, content: bytes) -> None:
        self._check()
        if sum(map(len, self.files.values())) + len(content) > self._limits.disk_bytes:
            raise ToolError(f"{path} could not be written: No space left on device")
        self.files[path] = content

    async def remove(self, path: str) -> bool:
        self._check()
        return self.files.pop(path, None) is not None

    async def share(self, name: str, files: Mapping[str, bytes], scripts: Collection[str]) -> None:
        self._check()
        self.shared[name] = dict(files)

    async def close(self) -> None:
        self.is_alive = False

    def _run(self, text: str) -> Outcome:
        self._check()
        self.ran.append(text)
        return self._runs(text, self.files)

    def _check(self) -> None:
        if not self.is_alive:
            raise ToolError("The sandbox has ended.")


class FakeSandbox:
    """``Sandbox`` of such boxes; ``boxes`` are those it opened."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self.boxes: list[FakeBox] = []

    async def open(self, limits: Limits) -> FakeBox:
        self.boxes.append(FakeBox(self._runs, limits))
        return self.boxes[-1]

    async def close(self) -> None:
        pass
