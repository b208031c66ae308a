"""A fake sandbox for tests. It has no isolation, and a function of the test takes the place of the
interpreter.

Never run untrusted code with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from antiphon.errors import ToolError
from antiphon.sandbox.base import ExecutionResult, FileEntry, Limits, OutputCallback
from antiphon.sandbox.egress.proxy import EgressProxy

__all__ = ["FakeBox", "FakeSandbox", "RunFunction"]

#: Function that gets the code and the files of the box, and returns the result. It may change the
#: files.
RunFunction = Callable[[str, dict[str, bytes]], ExecutionResult]


class FakeBox:
    """Fake sandbox environment (``Box``) that ``FakeSandbox`` opens. Its files are in a dictionary.
    ``run``: a function that takes the place of the interpreter. It gets the code or command and the
    files, and returns the result."""

    def __init__(self, run: RunFunction, limits: Limits) -> None:
        self._run_function = run
        self._limits = limits
        self.files: dict[str, bytes] = {}
        #: Name of a shared folder → its files.
        self.shared_files: dict[str, dict[str, bytes]] = {}
        self.is_alive = True
        #: The network proxy of the box. None if the box has no network.
        self.proxy: EgressProxy | None = None
        #: The code and the commands that were run, in order.
        self.executed_code: list[str] = []

    async def python(self, code: str, *, timeout_s: float, max_chars: int) -> ExecutionResult:
        return self._run(code)

    async def command(
        self,
        command: str,
        *,
        timeout_s: float,
        max_chars: int,
        on_output: OutputCallback | None = None,
    ) -> ExecutionResult:
        result = self._run(command)
        if on_output is not None:
            for text in result.output.splitlines(keepends=True):
                on_output(text, "")
            if result.stderr:
                on_output("", result.stderr)
        return result

    async def list_files(self) -> tuple[FileEntry, ...]:
        self._check()
        return tuple(
            FileEntry(path, len(content), hash(content))
            for path, content in sorted(self.files.items())
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
        self.shared_files[name] = dict(files)

    async def open_network(self, proxy: EgressProxy) -> None:
        self.proxy = proxy

    async def close(self) -> None:
        self.is_alive = False

    def _run(self, text: str) -> ExecutionResult:
        self._check()
        self.executed_code.append(text)
        return self._run_function(text, self.files)

    def _check(self) -> None:
        if not self.is_alive:
            raise ToolError("The sandbox has ended.")


class FakeSandbox:
    """``Sandbox`` that opens fake boxes. ``run``: the function that takes the place of the
    interpreter. It gets the code and the files of the box. ``boxes``: all boxes that were opened.
    """

    def __init__(self, run: RunFunction) -> None:
        self._run_function = run
        self.boxes: list[FakeBox] = []

    async def open(self, limits: Limits) -> FakeBox:
        self.boxes.append(FakeBox(self._run_function, limits))
        return self.boxes[-1]

    async def close(self) -> None:
        pass
