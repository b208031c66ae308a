"""JavaScript that nobody has read, run by QuickJS inside a WebAssembly machine: no files, no
network, no clock and no chance, so that a program given the same answers always does the same.

A program is not kept between its steps: it is run again from its beginning with the answers that
there are by then. It knows no tools and no requests.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata, resources, util
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    import wasmtime

__all__ = ["Answer", "Asked", "JavaScript", "Stage"]

_QUICKJS = "qjs-wasi-reactor.wasm"
#: Of QuickJS: what ``JS_Eval`` gives where the code threw.
_EXCEPTION = 6
#: Of QuickJS, too: a job threw, and others may be left.
_THREW = -2
_SLOW = "It took too long and was stopped."
_BROKE = "It broke off: it used too much memory, or calls itself without an end."


class Asked(Struct, frozen=True, array_like=True):
    """A call of ``tools``: what stands behind the name, and the argument as JSON (``""``: none)."""

    path: tuple[str, ...]
    argument: str


class Answer(Struct, frozen=True, array_like=True):
    """What came of a call: a value as JSON; or, with ``failed``, the message of what is thrown, as
    JSON too."""

    value: str
    failed: bool = False


class Stage(Struct, frozen=True, kw_only=True):
    """How far a program came: it waits for answers to what it ``asked``, or it is over.
    ``said``: all it has put out; ``error``: why it broke off."""

    asked: tuple[Asked, ...] = ()
    said: str = ""
    error: str | None = None


_stage = msgspec.json.Decoder(Stage).decode


class JavaScript:
    """Runs programs, ``side_by_side`` of them at a time, each in a machine of its own. ``step_s``:
    seconds a program may compute before it is over or waits."""

    def __init__(
        self, *, step_s: float = 5.0, memory_bytes: int = 64 << 20, side_by_side: int = 4
    ) -> None:
        self._step_s = step_s
        self._memory_bytes = memory_bytes
        self._prelude = resources.files("antiphon.sandbox").joinpath("prelude.js").read_text()
        self._threads = ThreadPoolExecutor(side_by_side, thread_name_prefix="program")
        self._compiling = threading.Lock()
        self._compiled: bytearray | None = None

    @staticmethod
    def is_here() -> bool:
        """Whether what it needs is installed: the extra ``programs``."""
        try:
            return util.find_spec("wasmtime") is not None and bool(metadata.version(_QUICKJS))
        except metadata.PackageNotFoundError:
            return False

    def close(self) -> None:
        """Nothing is run any more; what still runs ends within its time."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def advance(
        self,
        code: str,
        paths: Sequence[tuple[str, ...]],
        answers: Sequence[Answer] = (),
        *,
        at: int = 0,
    ) -> Stage:
        """Run ``code`` from its beginning, its first calls answered. ``paths``: what stands behind
        ``tools``; ``at``: the time in it, in milliseconds, which also seeds its chance. To cancel
        it stops the program."""
        from wasmtime import Config, Engine

        config = Config()
        config.epoch_interruption = True
        engine = Engine(config)  # one a program: to raise its epoch stops what runs in it
        given = json.dumps([code, paths, [[a.value, a.failed] for a in answers], at])
        left = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, self._advance, engine, given, left
            )
        finally:
            left.set()
            engine.increment_epoch()

    # --- in a thread -----------------------------------------------------------------------------

    def _advance(self, engine: wasmtime.Engine, given: str, left: threading.Event) -> Stage:
        machine = _Machine(engine, self._module(engine), self._memory_bytes)
        if left.is_set():  # before there was an epoch that could end
            return Stage(error=_SLOW)
        timer = threading.Timer(self._step_s, engine.increment_epoch)
        timer.start()
        try:
            machine.evaluate(f"({self._prelude})({given})")
            while True:
                machine.run_jobs()
                if told := machine.evaluate("__program.step()"):
                    return _stage(told)
        except Exception as error:  # whatever a program does to its machine is no error of ours
            why = _SLOW if "interrupt" in str(error) else _BROKE
            said = ""
            with suppress(Exception):
                said = machine.evaluate("__program.said()")
            return Stage(said=said, error=why)
        finally:
            timer.cancel()

    def _module(self, engine: wasmtime.Engine) -> wasmtime.Module:
        """QuickJS. It takes a second to be compiled, once."""
        from wasmtime import Module

        with self._compiling:
            if self._compiled is None:
                files = metadata.files(_QUICKJS) or ()
                path = next(file for file in files if file.name.endswith(".wasm"))
                self._compiled = Module.from_file(engine, str(path.locate())).serialize()
        return Module.deserialize(engine, self._compiled)


class _Machine:
    """A machine with QuickJS in it. What it tells is believed as little as a client's body; all of
    it is gone with this."""

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module, memory_bytes: int) -> None:
        from wasmtime import Linker, Store, WasiConfig

        self._store = store = Store(engine)
        store.set_wasi(WasiConfig())  # of which nothing is granted
        store.set_limits(memory_size=memory_bytes)
        store.set_epoch_deadline(1)
        linker = Linker(engine)
        linker.define_wasi()
        self._exports: Any = linker.instantiate(store, module).exports(store)
        self._call("_initialize")
        runtime = self._call("JS_NewRuntime")
        self._call("js_std_init_handlers", runtime)
        self._context = self._call("JS_NewContext", runtime)
        self._name, _ = self._put("program")
        self._place = self._call("malloc", 4)

    def evaluate(self, source: str) -> str:
        """The value of a script, as text. Raises ``ValueError`` where it throws."""
        text, size = self._put(source)
        value = self._call("JS_Eval", self._context, text, size, self._name, 0)
        if (value >> 32) & 0xFFFFFFFF == _EXCEPTION:
            raise ValueError("the prelude broke")
        found = self._call("JS_ToCStringLen2", self._context, self._place, value, 0)
        size = int.from_bytes(self._read(self._place, 4), "little")
        return self._read(found, size).decode("utf-8", "replace")

    def run_jobs(self) -> None:
        """All that can go on by itself does."""
        while self._call("js_std_loop_once", self._context) == _THREW:
            pass

    def _put(self, text: str) -> tuple[int, int]:
        content = text.encode("utf-8", "replace")
        place = self._call("malloc", len(content) + 1)
        self._exports["memory"].write(self._store, content + b"\0", place)
        return place, len(content)

    def _read(self, place: int, size: int) -> bytearray:
        found: bytearray = self._exports["memory"].read(self._store, place, place + size)
        return found

    def _call(self, name: str, *given: int) -> Any:
        return self._exports[name](self._store, *given)
