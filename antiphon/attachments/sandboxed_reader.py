"""Extract the text of documents inside a sandbox.

A hostile file may take over the parser. In the sandbox, it still cannot access the network, files
of the server or other documents.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from antiphon.errors import SetupError, ToolError
from antiphon.sandbox.base import Limits, Sandbox

from .documents import WORKER, UnreadableDocument

#: Folder inside the sandbox with the extraction library and the worker program.
_LIBRARY_FOLDER = "/run/site"
_BOOTSTRAP = (
    f"import runpy, sys; sys.path.append({_LIBRARY_FOLDER!r}); del sys.argv[0];"
    " runpy.run_path(sys.argv[0], None, '__main__')"
)
_MEMORY = 3 << 30
_DISK_OVERHEAD = 64 << 20
#: Time limit of the check, in seconds. It is long because the starting server uses the CPU at the
#: same time.
_CHECK_S = 60
#: Maximum number of characters that JSON needs for one character of text.
_MAX_ESCAPE = 6


def mounts() -> Mapping[str, str]:
    """Return the mounts that the sandbox needs: path inside the sandbox → path on this machine.

    The mounts are the extraction library with its dependencies, and the worker program. The sandbox
    may have another version of Python than this process, because the library works with Python 3.10
    and all later versions. Returns an empty mapping if the library is not installed.
    """
    spec = find_spec("kreuzberg")
    if spec is None or spec.origin is None:
        return {}
    folder = Path(spec.origin).parent
    found = [
        folder,
        *folder.parent.glob("kreuzberg.libs"),
        *folder.parent.glob("kreuzberg-*.dist-info"),
    ]
    return {f"{_LIBRARY_FOLDER}/{path.name}": str(path) for path in found} | {
        f"{_LIBRARY_FOLDER}/worker.py": str(WORKER)
    }


class SandboxedReader:
    """``DocumentReader`` that opens a new sandbox for each document.

    ``python``: the interpreter inside the sandbox. The sandbox must have the mounts that ``mounts``
    returns.
    """

    def __init__(self, sandbox: Sandbox, python: str) -> None:
        self._sandbox = sandbox
        self._python = python

    async def check(self) -> None:
        """Read a small document in the sandbox. Raises ``SetupError`` with a one-line message if
        this fails."""
        try:
            output = await self.read(b"<p>read</p>", "text/html", max_chars=100, timeout_s=_CHECK_S)
        except (ToolError, UnreadableDocument) as error:
            raise SetupError(str(error)) from None
        if b'"read' not in output:
            raise SetupError(f"{self._python} cannot read documents (needs Python 3.10 or newer)")

    async def read(self, content: bytes, kind: str, *, max_chars: int, timeout_s: float) -> bytes:
        box = await self._sandbox.open(
            Limits(memory_bytes=_MEMORY, disk_bytes=len(content) + _DISK_OVERHEAD)
        )
        try:
            await box.write("document", content)
            command = (
                self._python,
                "-I",
                "-c",
                _BOOTSTRAP,
                f"{_LIBRARY_FOLDER}/worker.py",
                kind,
                str(max_chars),
            )
            outcome = await box.command(
                f"exec {shlex.join(command)} < document",
                timeout_s=timeout_s,
                max_chars=_MAX_ESCAPE * max_chars + 1000,
            )
        finally:
            await box.close()
        if outcome.end_reason == "timeout":
            raise UnreadableDocument("slow")
        if outcome.end_reason != "done" or outcome.exit_code:  # killed at a limit
            raise UnreadableDocument("bomb")
        return outcome.output.encode()
