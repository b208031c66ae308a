"""Run untrusted JavaScript programs with QuickJS, in a WebAssembly virtual machine. A program is
JavaScript code of the model. It calls tools and waits for the outcomes of these tool calls.

A program has no access to files, the network, the real clock or real randomness, so it always
behaves in the same way if its tool calls have the same outcomes.

A program is not kept alive while it waits. When new outcomes are known, it runs again from its
beginning, with all outcomes that are known. Each such execution is called a step.
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

from antiphon.support.fair_limiter import FairLimiter

if TYPE_CHECKING:
    import wasmtime

_QUICKJS_PACKAGE = "qjs-wasi-reactor.wasm"
#: QuickJS: the tag of the value that ``JS_Eval`` returns if the code threw an exception.
_EXCEPTION = 6
#: QuickJS: ``js_std_loop_once`` returns this value if a job threw an exception. More jobs may
#: remain.
_JOB_THREW = -2
_TIMEOUT_MESSAGE = "It took too long and was stopped."
_TRAP_MESSAGE = "It was aborted: it used too much memory or recursed without end."


class ProgramCall(Struct, frozen=True, array_like=True):
    """A tool call of a JavaScript program: the program calls a function of the object ``tools``.
    ``path``: the names that lead from ``tools`` to the function. ``argument``: the argument as
    JSON. It is empty if the call has no argument."""

    path: tuple[str, ...]
    argument: str


class CallOutcome(Struct, frozen=True, array_like=True):
    """The outcome of a tool call that a JavaScript program made. ``value``: the result as JSON. If
    ``failed`` is true, the call throws an error, and ``value`` is the message of the error as
    JSON."""

    value: str
    failed: bool = False


class ProgramState(Struct, frozen=True, kw_only=True):
    """The state of a JavaScript program after a call of ``advance``. The program has ended if
    ``pending_calls`` is empty.

    - ``pending_calls``: the tool calls for which the program waits.
    - ``output``: all the text that the program has printed.
    - ``error``: the reason why the program failed. None if it did not fail.
    """

    pending_calls: tuple[ProgramCall, ...] = ()
    output: str = ""
    error: str | None = None


_decode_state = msgspec.json.Decoder(ProgramState).decode


class JavaScript:
    """Runs JavaScript programs, up to ``max_concurrent`` at a time. Each program runs in a separate
    virtual machine.

    ``step_s``: the maximum computing time in seconds of one call of ``JavaScript.advance``, which
    runs a program until the program needs the result of a tool call. ``memory_bytes``: memory limit
    of one program.
    """

    def __init__(
        self, *, step_s: float = 5.0, memory_bytes: int = 64 << 20, max_concurrent: int = 4
    ) -> None:
        self._step_s = step_s
        self._memory_bytes = memory_bytes
        self._prelude = resources.files("antiphon.sandbox").joinpath("prelude.js").read_text()
        self._threads = ThreadPoolExecutor(max_concurrent, thread_name_prefix="program")
        self._slots = FairLimiter(max_concurrent)
        self._compile_lock = threading.Lock()
        self._compiled_module: bytearray | None = None

    @staticmethod
    def is_installed() -> bool:
        """Whether the packages of the Python extra ``programs`` are installed."""
        try:
            return util.find_spec("wasmtime") is not None and bool(
                metadata.version(_QUICKJS_PACKAGE)
            )
        except metadata.PackageNotFoundError:
            return False

    def close(self) -> None:
        """Start no more programs. Programs that are running now end within their time limit."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def advance(
        self,
        code: str,
        paths: Sequence[tuple[str, ...]],
        outcomes: Sequence[CallOutcome] = (),
        *,
        time_ms: int = 0,
        tenant: str = "",
    ) -> ProgramState:
        """Run the JavaScript program ``code`` from its beginning until it ends or waits for a tool
        call that has no outcome yet. Return the state of the program.

        - ``paths``: the functions that the program may call. Each function is a tuple of property
          names: ``("a", "b")`` stands for the function ``tools.a.b``.
        - ``outcomes``: the outcomes of the tool calls so far, in the order of the calls.
        - ``time_ms``: the time that the program sees, in Unix milliseconds. It is also the seed of
          the program's random numbers.
        - ``tenant``: the tenant of the program. If programs have to wait, tenants are served
          alternately.

        Cancelling this call stops the program.
        """
        from wasmtime import Config, Engine

        config = Config()
        config.epoch_interruption = True
        engine = Engine(config)  # own engine: incrementing its epoch stops only this program
        arguments = json.dumps(
            [code, paths, [[each.value, each.failed] for each in outcomes], time_ms]
        )
        abandoned = threading.Event()
        try:
            async with self._slots.slot(tenant):
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._run, engine, arguments, abandoned
                )
        finally:
            abandoned.set()
            engine.increment_epoch()

    # --- worker threads --------------------------------------------------------------------------

    def _run(
        self, engine: wasmtime.Engine, arguments: str, abandoned: threading.Event
    ) -> ProgramState:
        machine = _Machine(engine, self._load_module(engine), self._memory_bytes)
        if abandoned.is_set():  # the epoch was incremented before the deadline was set
            return ProgramState(error=_TIMEOUT_MESSAGE)
        timer = threading.Timer(self._step_s, engine.increment_epoch)
        timer.start()
        try:
            machine.evaluate(f"({self._prelude})({arguments})")
            while True:
                machine.run_jobs()
                if state := machine.evaluate("__program.step()"):
                    return _decode_state(state)
        except Exception as error:  # a program may break its virtual machine in any way
            message = _TIMEOUT_MESSAGE if "interrupt" in str(error) else _TRAP_MESSAGE
            output = ""
            with suppress(Exception):
                output = machine.evaluate("__program.output()")
            return ProgramState(output=output, error=message)
        finally:
            timer.cancel()

    def _load_module(self, engine: wasmtime.Engine) -> wasmtime.Module:
        """Load QuickJS as a WebAssembly module. The first call compiles it, which takes about a
        second."""
        from wasmtime import Module

        with self._compile_lock:
            if self._compiled_module is None:
                files = metadata.files(_QUICKJS_PACKAGE) or ()
                path = next(file for file in files if file.name.endswith(".wasm"))
                self._compiled_module = Module.from_file(engine, str(path.locate())).serialize()
        return Module.deserialize(engine, self._compiled_module)


class _Machine:
    """A WebAssembly virtual machine that runs QuickJS. The results of scripts are untrusted, so
    callers must validate them.

    The memory of the virtual machine is freed when this object is freed.
    """

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module, memory_bytes: int) -> None:
        from wasmtime import Linker, Store, WasiConfig

        self._store = store = Store(engine)
        store.set_wasi(WasiConfig())  # no capabilities: no files, environment or clock
        store.set_limits(memory_size=memory_bytes)
        store.set_epoch_deadline(1)
        linker = Linker(engine)
        linker.define_wasi()
        self._exports: Any = linker.instantiate(store, module).exports(store)
        self._call("_initialize")
        runtime = self._call("JS_NewRuntime")
        self._call("js_std_init_handlers", runtime)
        self._context = self._call("JS_NewContext", runtime)
        self._script_name, _ = self._write_string("program")
        self._length_address = self._call("malloc", 4)

    def evaluate(self, source: str) -> str:
        """Run a script and return its value as text. Raises ``ValueError`` if the script throws an
        exception."""
        text, size = self._write_string(source)
        value = self._call("JS_Eval", self._context, text, size, self._script_name, 0)
        if (value >> 32) & 0xFFFFFFFF == _EXCEPTION:
            raise ValueError("the script threw an exception")
        address = self._call("JS_ToCStringLen2", self._context, self._length_address, value, 0)
        size = int.from_bytes(self._read(self._length_address, 4), "little")
        return self._read(address, size).decode("utf-8", "replace")

    def run_jobs(self) -> None:
        """Run the jobs of JavaScript promises until no job is ready."""
        while self._call("js_std_loop_once", self._context) == _JOB_THREW:
            pass

    def _write_string(self, text: str) -> tuple[int, int]:
        content = text.encode("utf-8", "replace")
        address = self._call("malloc", len(content) + 1)
        self._exports["memory"].write(self._store, content + b"\0", address)
        return address, len(content)

    def _read(self, address: int, size: int) -> bytearray:
        content: bytearray = self._exports["memory"].read(self._store, address, address + size)
        return content

    def _call(self, name: str, *arguments: int) -> Any:
        return self._exports[name](self._store, *arguments)
