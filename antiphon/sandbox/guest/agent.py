"""What runs inside a box, as its first process: it answers the server, runs Python and commands,
keeps them within their limits, and reads and writes files. Only the standard library: the Python
of the box is not the server's. What it runs cannot signal it, and ends with it.

Frames both ways: four bytes of length, then JSON.
"""

from __future__ import annotations

import codecs
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

from . import files
from .python_kernel import HOME, Kernel, received, sent

__all__ = ["main"]

GRACE_S = 2.0
TICK_S = 0.2
#: At most so often is told what is written.
TELL_S = 0.05
#: A process that has written this many times what is kept of it is interrupted.
FLOOD = 50
KEPT_FDS = 512
#: Of /proc/PID/status, in KiB. What is shared counts for each: it cannot be hidden so.
_COUNTED = ("RssAnon:", "RssShmem:")


class _Sink:
    """What a process writes: the first and the last of it, ``most`` characters."""

    def __init__(self, most: int) -> None:
        self.half = max(1, most // 2)
        self.first = bytearray()
        self.last = bytearray()
        self.size = self.told = 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        read, self.end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        self.fd = read

    def drain(self, most: int = 1 << 22) -> None:
        while most > 0:
            try:
                piece = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                return
            most -= len(piece)
            self.take(piece)

    def take(self, piece: bytes) -> None:
        self.size += len(piece)
        room = self.half - len(self.first)
        self.first += piece[:room]
        self.last += piece[room:] if room > 0 else piece
        del self.last[: -self.half]

    def news(self, ended: bool = False) -> str:
        """What has come since the last time, as long as all of it is kept."""
        kept = bytes(self.first + self.last) if self.size <= 2 * self.half else bytes(self.first)
        piece = kept[self.told :]
        self.told += len(piece)
        return self.decoder.decode(piece, ended)

    def text(self) -> str:
        left = self.size - len(self.first) - len(self.last)
        if not left:
            return bytes(self.first + self.last).decode("utf-8", "replace")
        first, last = (bytes(b).decode("utf-8", "replace") for b in (self.first, self.last))
        return f"{first}\n[… {left} bytes left out …]\n{last}"

    def reset(self, most: int) -> None:
        self.drain()
        self.half = max(1, most // 2)
        self.size = 0
        self.first.clear()
        self.last.clear()


def _limit(limits: Any) -> None:
    """For the process that calls it and those it starts. The server goes before them."""
    os.nice(5)
    memory = limits["memory"]
    for what, most in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_AS, 4 * memory),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_FSIZE, limits["disk"]),
        (resource.RLIMIT_NOFILE, KEPT_FDS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _dumpable(yes: bool) -> None:
    """Whether others of the same user may look into this process (prctl(2), PR_SET_DUMPABLE)."""
    import ctypes

    ctypes.CDLL(None).prctl(4, int(yes), 0, 0, 0)


def _used() -> int:
    """Bytes of memory of all processes but this one, and of what files are besides their content:
    the size of a disk does not bound their number."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/status") as status:
                    lines = status.read().split("\n")
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in lines if line.startswith(_COUNTED))
    for disk in (HOME, "/tmp", "/dev/shm"):
        about = os.statvfs(disk)
        total += about.f_files - about.f_ffree  # a KiB each
    return total * 1024


def _everybody(number: int) -> None:
    """A signal to every process but this one."""
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        pass


def _reap() -> tuple[set[int], bool]:
    """Who has ended, orphans too, and whether anybody is left."""
    ended: set[int] = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended.add(pid)


def _end_everybody() -> None:
    left = True
    while left:
        _everybody(signal.SIGKILL)
        _, left = _reap()
        time.sleep(0.002 if left else 0)


class _Agent:
    """Serves one box."""

    def __init__(self, inbox: int, outbox: int) -> None:
        self.inbox, self.outbox = inbox, outbox
        self.limits: Any = None
        self.kernel: int | None = None
        self.control: Any = None
        self.sink: _Sink | None = None
        self.why: str | None = None
        self.does = {
            "limits": self.set_limits,
            "python": self.python,
            "command": self.command,
            "entries": files.entries,
            "read": files.read,
            "write": files.write,
            "remove": files.remove,
        }

    def serve(self) -> None:
        while (asked := received(self.inbox)) is not None:
            if asked["op"] == "stop":  # what it means is over
                continue
            try:
                answer = self.does[asked["op"]](asked)
            except OSError as error:
                answer = {"error": error.strerror or str(error)}
            sent(self.outbox, answer)

    def set_limits(self, asked: Any) -> Any:
        self.limits = asked
        return {"python": sys.version.split()[0]}

    # --- running ---------------------------------------------------------------------------------

    def python(self, asked: Any) -> Any:
        self.wake()
        if self.kernel is None:
            self.begin(asked["most"])
        sink, kernel = self.sink, self.kernel
        assert sink is not None and kernel is not None
        sink.reset(asked["most"])
        exit_fd = os.pidfd_open(kernel)
        told: Any = None
        try:
            sent(self.control.fileno(), {"code": asked["code"]})
            why = self.follow(
                [sink], {exit_fd, self.control.fileno()}, asked, lambda: os.kill(kernel, 2)
            )
            if why != "killed" and self.control.fileno() in self.ready({self.control.fileno()}):
                told = received(self.control.fileno(), 1 << 16)
        except (OSError, ValueError):
            told, why = None, "died"
        finally:
            os.close(exit_fd)
        sink.drain()
        text = sink.text()
        if not isinstance(told, dict):
            self.lose()
        self.rest()
        kept = self.kernel is not None
        if self.why is None:
            self.why = "died" if not kept else "done" if told.get("ok") else "raised"
        images = [str(i) for i in told.get("images", ())] if isinstance(told, dict) else []
        return {"output": text, "ended": self.why, "images": images, "kept": kept}

    def command(self, asked: Any) -> Any:
        import subprocess

        self.wake()
        out, err = _Sink(asked["most"]), _Sink(asked["most"])
        limits = self.limits

        def begin() -> None:
            _dumpable(True)
            _limit(limits)

        shell = next(p for p in ("/bin/bash", "/usr/bin/bash", "/bin/sh") if os.path.exists(p))
        process = subprocess.Popen(
            [shell, "-c", asked["command"]],
            stdin=subprocess.DEVNULL,
            stdout=out.end,
            stderr=err.end,
            cwd=HOME,
            start_new_session=True,
            preexec_fn=begin,
        )
        os.close(out.end)
        os.close(err.end)
        exit_fd = os.pidfd_open(process.pid)
        group = process.pid

        def stop() -> None:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass

        self.follow([out, err], {exit_fd}, asked, stop)
        if self.why is not None:
            stop()
        code = process.wait()
        os.close(exit_fd)
        for sink in (out, err):
            sink.drain()
            os.close(sink.fd)
        if asked["tells"]:
            self.tell([out, err], ended=True)
        self.rest()
        return {
            "output": out.text(),
            "errors": err.text(),
            "ended": self.why or "done",
            "exit_code": code if code >= 0 else 128 - code,
            "kept": self.kernel is not None,
        }

    def wake(self) -> None:
        """What still runs goes on, for as long as somebody waits; what has ended is forgotten."""
        self.why = None
        ended, _ = _reap()
        if self.kernel in ended:
            self.forget()
        _everybody(signal.SIGCONT)

    def rest(self) -> None:
        """Nothing runs while nobody waits. Of what had to be interrupted only Python is left."""
        _everybody(signal.SIGSTOP)
        if self.why is None:
            return
        others = {int(n) for n in os.listdir("/proc") if n.isdigit()} - {1, self.kernel}
        for pid in others:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if 2 * len(others) > self.limits["processes"]:  # their places are Python's to give back
            self.lose()

    def follow(self, sinks: Any, ends: Any, asked: Any, interrupt: Any) -> str:
        """Until one of ``ends`` is readable. What is not over in time is interrupted, then killed;
        ``self.why`` says why."""
        deadline = time.monotonic() + asked["timeout"]
        killed_at, again_at, tell_at = None, 0.0, 0.0
        flood = FLOOD * asked["most"] + (1 << 20)
        while True:
            ready = self.ready({self.inbox, *ends, *(sink.fd for sink in sinks)}, TICK_S)
            for sink in sinks:
                if sink.fd in ready:
                    sink.drain()
            if ready & ends:
                return "over"
            now = time.monotonic()
            if asked.get("tells") and now > tell_at:
                tell_at = now + TELL_S
                self.tell(sinks)
            why = self.reason(ready, deadline, sum(sink.size for sink in sinks) > flood)
            if killed_at is None and why is not None:
                self.why = why
                if why == "memory":
                    _end_everybody()
                    self.forget()
                    return "killed"
                killed_at = now + GRACE_S
            if killed_at is not None and now > killed_at:
                _end_everybody()
                self.forget()
                return "killed"
            if killed_at is not None and now > again_at:  # one that comes too early is lost
                again_at = now + TICK_S
                interrupt()

    def tell(self, sinks: Any, ended: bool = False) -> None:
        """What was written since the last time."""
        written = [sink.news(ended) for sink in sinks]
        if any(written):
            sent(self.outbox, {"written": written})

    def reason(self, ready: Any, deadline: float, floods: bool) -> str | None:
        if self.inbox in ready:
            asked = received(self.inbox)
            if asked is None:  # the server is gone
                os._exit(0)
            return "stopped"
        if time.monotonic() > deadline:
            return "timeout"
        if floods:
            return "output"
        return "memory" if _used() > self.limits["memory"] else None

    def ready(self, fds: Any, wait_s: float = 0) -> Any:
        return set(select.select(list(fds), [], [], wait_s)[0])

    def begin(self, most: int) -> None:
        """Python, as a child: it costs no start of an interpreter."""
        self.sink = sink = _Sink(most)
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            for fd in (self.inbox, self.outbox, sink.fd):
                os.close(fd)
            ours.close()
            os.dup2(sink.end, 1)
            os.dup2(sink.end, 2)
            os.close(sink.end)
            _dumpable(True)
            _limit(self.limits)
            Kernel(theirs.detach()).serve()
            os._exit(0)
        theirs.close()
        os.close(sink.end)
        self.kernel, self.control = pid, ours

    def lose(self) -> None:
        """The Python is of no use any more; neither is what it started."""
        if self.kernel is not None:
            _end_everybody()
            self.forget()

    def forget(self) -> None:
        if self.kernel is not None:
            assert self.sink is not None
            self.sink.drain()
            self.kernel = None


def main() -> None:
    inbox, outbox = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _dumpable(False)
    del sys.path[0]  # by which this was found
    _Agent(inbox, outbox).serve()
    os._exit(0)
