"""The Python kernel: a process inside a box (sandbox environment) that runs Python code and keeps
the variables between executions.

It uses only the standard library, because it runs in the Python interpreter of the box. The agent,
another program in the box, talks to the kernel in frames. In both directions, a frame is four bytes
of length (big-endian), then JSON.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from typing import Any

HOME = "/mnt/data"


def receive_frame(fd: int, max_bytes: int = 1 << 31) -> Any:
    """Read the next frame (four bytes of length, then JSON) from ``fd`` and return its content.
    Return None at the end of the stream. Raises ``ValueError`` if the frame is malformed or longer
    than ``max_bytes``."""
    head = _read_exactly(fd, 4)
    if head is None:
        return None
    size = struct.unpack(">I", head)[0]
    if size > max_bytes:
        raise ValueError("a frame is too long")
    body = _read_exactly(fd, size)
    return None if body is None else json.loads(body)


def _read_exactly(fd: int, size: int) -> bytes | None:
    pieces = []
    while size:
        piece = os.read(fd, min(size, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def send_frame(fd: int, frame: object) -> None:
    """Write a frame (four bytes of length, then JSON) to ``fd``. ``frame``: the content of the
    frame, which is encoded as JSON."""
    body = json.dumps(frame).encode()
    remaining = memoryview(struct.pack(">I", len(body)) + body)
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]


class Kernel:
    """Executes cells (pieces of Python code) in one namespace, which keeps the variables. The cells
    come from the agent. ``control_fd``: the file descriptor of the connection to the agent."""

    def __init__(self, control_fd: int) -> None:
        self.control_fd = control_fd
        self.cell_count = 0
        self.images: list[str] = []
        self.is_running = False
        self.variables: dict[str, Any] = {}

    def serve(self) -> None:
        """Receive frames from the agent, and execute the code in each frame, until the connection
        to the agent closes."""
        main = type(sys)("__main__")
        self.variables = main.__dict__
        self.variables["display"] = self.display
        sys.modules["__main__"] = main
        sys.path.insert(0, HOME)
        sys.argv = [""]
        sys.stdin = open(os.devnull)
        sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)
        sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)
        while True:
            request = receive_frame(self.control_fd)
            if request is None:
                return
            self.cell_count += 1
            self.images = []
            ok = False
            signal.signal(signal.SIGINT, self.interrupt)
            try:
                self.is_running = True
                ok = self.run(request["code"])
                self.save_figures()
                sys.stdout.flush()
                self.is_running = False
            except BaseException as error:
                self.is_running = False
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
            send_frame(self.control_fd, {"ok": ok, "images": self.images[:20]})

    def interrupt(self, number: int, frame: object) -> None:
        """Handle SIGINT: raise ``KeyboardInterrupt`` in the running code, at most once per cell.
        Later signals are ignored, because they could interrupt the kernel's own code."""
        if self.is_running:
            self.is_running = False
            raise KeyboardInterrupt

    def run(self, code: str) -> bool:
        """Execute a cell and display the value of its last expression. Return whether the code ran
        without an exception."""
        import ast
        import linecache

        name = f"<cell {self.cell_count}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            tree = ast.parse(code, name)
            end = tree.body[-1] if tree.body else None
            last_expression = ast.Expression(end.value) if isinstance(end, ast.Expr) else None
            if last_expression is not None:
                tree.body.pop()
            self.evaluate(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if last_expression is not None:
                value = self.evaluate(
                    compile(last_expression, name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                )
                if value is not None and not code.rstrip().endswith(";"):
                    self.variables["_"] = value
                    self.display(value)
        except SystemExit:
            return True
        except BaseException as error:
            self.print_traceback(error, name)
            return False
        return True

    def evaluate(self, compiled: Any) -> Any:
        """Evaluate compiled code. The code may contain ``await`` at top level."""
        import inspect

        value = eval(compiled, self.variables)
        if compiled.co_flags & inspect.CO_COROUTINE:
            import asyncio

            return asyncio.run(value)
        return value

    def print_traceback(self, error: BaseException, name: str) -> None:
        """Write the traceback of an exception to standard error. The stack frames of the kernel
        itself are left out. ``name``: the file name of the cell's code, as it was passed to
        ``compile``."""
        import traceback

        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != name:
            trace = trace.tb_next
        lines = traceback.format_exception(type(error), error, trace)
        sys.stderr.write("".join(lines))

    def display(self, *values: object) -> None:
        """Display values. A value with a PNG representation is saved as an image file. Other values
        are printed."""
        for value in values:
            to_png = getattr(value, "_repr_png_", None)
            png = to_png() if callable(to_png) and not isinstance(value, type) else None
            if isinstance(png, bytes):
                with open(self.new_image_path(), "wb") as file:
                    file.write(png)
            else:
                sys.stdout.write(f"{value!r}\n")

    def save_figures(self) -> None:
        """Save the open figures of matplotlib as image files, and close them."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for number in pyplot.get_fignums():
            pyplot.figure(number).savefig(self.new_image_path(), format="png", bbox_inches="tight")
        pyplot.close("all")

    def new_image_path(self) -> str:
        """Return a path for a new image file, and note that the running cell has created it."""
        number = 1
        while os.path.exists(f"{HOME}/image-{number}.png"):
            number += 1
        self.images.append(f"image-{number}.png")
        return f"{HOME}/image-{number}.png"
