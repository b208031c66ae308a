"""Documents read in a box: whatever a hostile file does to the parser, it has no network, no files
of the server's and no other document. It knows no requests.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from antiphon.errors import SetupError, ToolError
from antiphon.sandbox.base import Limits, Sandbox

from .documents import WORKER, Unreadable

__all__ = ["BoxedReader", "mounts"]

#: Where the library lies in a box.
_SITE = "/run/site"
_BEGIN = (
    f"import runpy, sys; sys.path.append({_SITE!r}); del sys.argv[0];"
    " runpy.run_path(sys.argv[0], None, '__main__')"
)
_MEMORY = 3 << 30
_AROUND = 64 << 20
#: Characters of JSON that one of a text may be.
_ESCAPED = 6


def mounts() -> Mapping[str, str]:
    """What boxes need to read documents: paths there, and here. The library is made for every
    Python from 3.10 on, and brings all it needs."""
    spec = find_spec("kreuzberg")
    if spec is None or spec.origin is None:
        return {}
    folder = Path(spec.origin).parent
    found = [
        folder,
        *folder.parent.glob("kreuzberg.libs"),
        *folder.parent.glob("kreuzberg-*.dist-info"),
    ]
    return {f"{_SITE}/{path.name}": str(path) for path in found} | {
        f"{_SITE}/worker.py": str(WORKER)
    }


class BoxedReader:
    """``Reader`` that takes a box for each document. ``python``: the one of the boxes, which are to
    have ``mounts``."""

    def __init__(self, sandbox: Sandbox, python: str) -> None:
        self._sandbox = sandbox
        self._python = python

    async def check(self) -> None:
        """Raises ``SetupError`` with one line if nothing can be read so here."""
        try:
            said = await self.read(b"<p>read</p>", "text/html", most=100, seconds=20)
        except (ToolError, Unreadable) as error:
            raise SetupError(str(error)) from None
        if b'"read' not in said:
            raise SetupError(f"{self._python} cannot read them (Python 3.10 or newer?)")

    async def read(self, content: bytes, kind: str, *, most: int, seconds: float) -> bytes:
        box = await self._sandbox.open(
            Limits(memory_bytes=_MEMORY, disk_bytes=len(content) + _AROUND)
        )
        try:
            await box.write("document", content)
            words = (self._python, "-I", "-c", _BEGIN, f"{_SITE}/worker.py", kind, str(most))
            outcome = await box.command(
                f"exec {shlex.join(words)} < document",
                timeout_s=seconds,
                max_chars=_ESCAPED * most + 1000,
            )
        finally:
            await box.close()
        if outcome.end_reason == "timeout":
            raise Unreadable("slow")
        if outcome.end_reason != "done" or outcome.exit_code:  # killed for what it took
            raise Unreadable("bomb")
        return outcome.output.encode()
