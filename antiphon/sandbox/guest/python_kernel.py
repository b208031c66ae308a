"""The Python inside a box, whose variables stay: a process of its own that runs what it is sent.
Only the standard library: the Python of the box is not the server's.

Frames both ways: four bytes of length, then JSON.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from typing import Any

__all__ = ["HOME", "Kernel", "received", "sent"]

HOME = "/mnt/data"


def received(fd: int, most: int = 1 << 31) -> Any:
    """The next frame, or None at the end. Raises ``ValueError`` if it is no frame."""
    head = _exactly(fd, 4)
    if head is None:
        return None
    size = struct.unpack(">I", head)[0]
    if size > most:
        raise ValueError("a frame is too long")
    body = _exactly(fd, size)
    return None if body is None else json.loads(body)


def _exactly(fd: int, size: int) -> bytes | None:
    pieces = []
    while size:
        piece = os.read(fd, min(size, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def sent(fd: int, frame: Any) -> None:
    body = json.dumps(frame).encode()
    left = memoryview(struct.pack(">I", len(body)) + body)
    while left:
        left = left[os.write(fd, left) :]


class Kernel:
    """Python whose variables stay, in a process of its own."""

    def __init__(self, control: int) -> None:
        self.control = control
        self.count = 0
        self.shown: list[str] = []
        self.is_running = False
        self.names: dict[str, Any] = {}

    def serve(self) -> None:
        main = type(sys)("__main__")
        self.names = main.__dict__
        self.names["display"] = self.display
        sys.modules["__main__"] = main
        sys.path.insert(0, HOME)
        sys.argv = [""]
        sys.stdin = open(os.devnull)
        sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)
        sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)
        while True:
            asked = received(self.control)
            if asked is None:
                return
            self.count += 1
            self.shown = []
            ok = False
            signal.signal(signal.SIGINT, self.interrupt)
            try:
                self.is_running = True
                ok = self.run(asked["code"])
                self.figures()
                sys.stdout.flush()
                self.is_running = False
            except BaseException as error:
                self.is_running = False
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sent(self.control, {"ok": ok, "images": self.shown[:20]})

    def interrupt(self, number: int, frame: Any) -> None:
        """Once for what runs: what comes later, or too late, must not hit ourselves."""
        if self.is_running:
            self.is_running = False
            raise KeyboardInterrupt

    def run(self, code: str) -> bool:
        import ast
        import linecache

        name = f"<cell {self.count}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            tree = ast.parse(code, name)
            end = tree.body[-1] if tree.body else None
            last = ast.Expression(end.value) if isinstance(end, ast.Expr) else None
            if last is not None:
                tree.body.pop()
            self.ran(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if last is not None and not code.rstrip().endswith(";"):
                value = self.ran(compile(last, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
                if value is not None:
                    self.names["_"] = value
                    self.display(value)
            elif last is not None:
                self.ran(compile(last, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        except SystemExit:
            return True
        except BaseException as error:
            self.complain(error, name)
            return False
        return True

    def ran(self, compiled: Any) -> Any:
        import inspect

        value = eval(compiled, self.names)
        if compiled.co_flags & inspect.CO_COROUTINE:
            import asyncio

            return asyncio.run(value)
        return value

    def complain(self, error: BaseException, name: str) -> None:
        """The traceback without our own frames."""
        import traceback

        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != name:
            trace = trace.tb_next
        lines = traceback.format_exception(type(error), error, trace)
        sys.stderr.write("".join(lines))

    def display(self, *values: Any) -> None:
        """Pictures become files, everything else is written."""
        for value in values:
            draw = getattr(value, "_repr_png_", None)
            picture = draw() if callable(draw) and not isinstance(value, type) else None
            if isinstance(picture, bytes):
                with open(self.picture(), "wb") as file:
                    file.write(picture)
            else:
                sys.stdout.write(f"{value!r}\n")

    def figures(self) -> None:
        """What was drawn with matplotlib and is still open is shown."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for number in pyplot.get_fignums():
            pyplot.figure(number).savefig(self.picture(), format="png", bbox_inches="tight")
        pyplot.close("all")

    def picture(self) -> str:
        number = 1
        while os.path.exists(f"{HOME}/image-{number}.png"):
            number += 1
        self.shown.append(f"image-{number}.png")
        return f"{HOME}/image-{number}.png"
