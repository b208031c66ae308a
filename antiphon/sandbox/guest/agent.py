"""The agent inside a box (sandbox environment): a program that serves the requests of the server.

It runs Python code and shell commands, enforces their limits, and reads and writes files. It uses
only the standard library, because it runs in the Python interpreter of the box.

In a bubblewrap box, the agent is the first process. Linux therefore protects it from the signals of
other processes, and ends all processes of the box when the agent ends. In a pod (``pod.py``), the
agent is one of several processes. They end when Kubernetes deletes the pod.

Requests and answers are frames: four bytes of length (big-endian), then JSON.
"""

from __future__ import annotations

import codecs
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any

from . import files, forwarder
from .processor_share import ProcessorShare, lower_priority, stat_fields
from .python_kernel import HOME, Kernel, receive_frame, send_frame

GRACE_S = 2.0
POLL_S = 0.2
#: Seconds between two reports of the output of a running command.
REPORT_INTERVAL_S = 0.05
#: Code that writes more than this many times the output limit is interrupted.
FLOOD_FACTOR = 50
MAX_OPEN_FILES = 512
#: Maximum size of an answer of the Python kernel, in bytes.
MAX_ANSWER = 1 << 16
#: The memory of a queued packet, divided by the size of its content.
SKB_FACTOR = 3
#: Fields of /proc/PID/status, in KiB. Shared memory is counted for each process that maps it. So
#: code cannot use it to evade the limit.
_MEMORY_FIELDS = ("RssAnon:", "RssShmem:")


class _OutputBuffer:
    """A buffer for the output of a process. It keeps the first and the last bytes, together at most
    ``max_bytes``, and drops the bytes in the middle. The process writes to ``write_fd``."""

    def __init__(self, max_bytes: int) -> None:
        self.half = max(1, max_bytes // 2)
        self.first = bytearray()
        self.last = bytearray()
        self.size = self.reported_bytes = 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        read, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        self.read_fd = read

    def drain(self, read_limit: int = 1 << 22) -> None:
        while read_limit > 0:
            try:
                piece = os.read(self.read_fd, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                return
            read_limit -= len(piece)
            self.append(piece)

    def append(self, piece: bytes) -> None:
        self.size += len(piece)
        room = self.half - len(self.first)
        self.first += piece[:room]
        self.last += piece[room:] if room > 0 else piece
        del self.last[: -self.half]

    def new_text(self, ended: bool = False) -> str:
        """Return the text that has arrived since the last call. Once the buffer has dropped bytes
        in the middle, this method returns no text that comes after the dropped bytes. ``ended``:
        whether the output is complete."""
        kept = bytes(self.first + self.last) if self.size <= 2 * self.half else bytes(self.first)
        piece = kept[self.reported_bytes :]
        self.reported_bytes += len(piece)
        return self.decoder.decode(piece, ended)

    def text(self) -> str:
        omitted = self.size - len(self.first) - len(self.last)
        if not omitted:
            return bytes(self.first + self.last).decode("utf-8", "replace")
        first, last = (bytes(b).decode("utf-8", "replace") for b in (self.first, self.last))
        return f"{first}\n[… {omitted} bytes left out …]\n{last}"

    def reset(self, max_bytes: int) -> None:
        self.drain()
        self.half = max(1, max_bytes // 2)
        self.size = 0
        self.first.clear()
        self.last.clear()


def _set_limits(limits: Any) -> None:
    """Set the resource limits of the calling process and its children, and lower their priority.

    In a pod, this function changes neither the priority nor the number of processes, because
    Kubernetes controls them. There, a limit that cannot be set is ignored, because kernels such as
    gVisor's lack some limits.
    """
    in_pod = limits["in_pod"]
    if not in_pod:
        lower_priority()
    memory = limits["memory"]
    for limit, value in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_AS, 4 * memory),
        *(() if in_pod else ((resource.RLIMIT_NPROC, limits["processes"]),)),
        (resource.RLIMIT_FSIZE, limits["disk"]),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        try:
            resource.setrlimit(limit, (value, value))
        except (OSError, ValueError):
            if not in_pod:
                raise


def _set_dumpable(enabled: bool) -> None:
    """Set whether other processes of the same user may inspect this process (prctl(2),
    PR_SET_DUMPABLE)."""
    import ctypes

    ctypes.CDLL(None).prctl(4, int(enabled), 0, 0, 0)


def _memory_used() -> int:
    """Return the number of bytes of memory that are in use in the box: by all processes except the
    agent, by sockets, and by file metadata.

    File metadata is counted because the size limit of a tmpfs does not limit the number of files.
    In a pod, only processes are counted, because Kubernetes limits all other memory.
    """
    total = 0
    for pid in _other_pids():
        try:
            with open(f"/proc/{pid}/status", errors="replace") as status:
                lines = status.read().split("\n")
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(_MEMORY_FIELDS))
    if not _is_first():
        return total * 1024
    for disk in (HOME, "/tmp", "/dev/shm"):
        status_vfs = os.statvfs(disk)
        total += status_vfs.f_files - status_vfs.f_ffree  # about one KiB per file
    return total * 1024 + _socket_memory()


def _socket_memory() -> int:
    """Return an estimate of the memory in socket buffers, in bytes. The kernel does not count this
    memory as memory of any process.

    For IP sockets, Linux reports the bytes in the queues. For each UNIX socket, a full buffer is
    assumed. Code cannot change the size of a buffer (``seccomp.py``).
    """
    queued = 0
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for fields in _table("/proc/net/" + name):
            if len(fields) > 4:
                queued += sum(int(queue, 16) for queue in fields[4].split(":"))
    unix_sockets = sum(1 for _ in _table("/proc/net/unix"))
    return SKB_FACTOR * queued + _buffer_size() * unix_sockets


def _buffer_size() -> int:
    """Return the size of the buffer of a UNIX socket, in bytes: net.core.wmem_default, which is not
    visible in the box."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _table(path: str) -> Any:
    """Yield each line of a table in /proc, split into its fields. The first line, which is a
    heading, is skipped."""
    try:
        with open(path) as file:
            next(file, None)
            for line in file:
                yield line.split()
    except OSError:
        return


class _KernelExchange:
    """One request to the Python kernel, and the kernel's answer.

    Sending and receiving never block. Untrusted code can access the kernel's end of the socket and
    stop reading from it. With a blocking call, the agent would then wait forever.

    ``answer`` is None until a whole frame has arrived. It stays None if the frame is malformed.
    """

    def __init__(self, connection: socket.socket, request: object) -> None:
        connection.setblocking(False)
        self.fd = connection.fileno()
        self.answer: Any = None
        self.is_over = False
        self._connection = connection
        body = json.dumps(request).encode()
        self._unsent = memoryview(struct.pack(">I", len(body)) + body)
        self._received = bytearray()

    @property
    def is_sending(self) -> bool:
        return bool(self._unsent) and not self.is_over

    def advance(self) -> None:
        """Send and receive further bytes without blocking."""
        try:
            if self._unsent:
                self._unsent = self._unsent[self._connection.send(self._unsent[: 1 << 16]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.is_over = True
        try:
            piece = self._connection.recv(MAX_ANSWER + 4 - len(self._received))
            self._received += piece
            self.is_over |= not piece
        except BlockingIOError:
            pass
        except OSError:
            self.is_over = True
        self._decode()

    def _decode(self) -> None:
        if len(self._received) < 4:
            return
        size = struct.unpack(">I", self._received[:4])[0]
        if size > MAX_ANSWER:
            self.is_over = True
        elif len(self._received) >= 4 + size:
            self.is_over = True
            with suppress(ValueError, RecursionError):
                self.answer = json.loads(self._received[4 : 4 + size])


def _is_first() -> bool:
    """Whether the agent has process id 1 in its PID namespace. If so, all other processes in this
    namespace were started by code that the agent runs."""
    return os.getpid() == 1


def _other_pids() -> set[int]:
    """Return the ids of the processes that the client's code has started. In a bubblewrap box,
    these are all processes except the agent. In a pod, these are the descendants of the agent.
    Orphaned descendants become children of the agent (see ``pod.py``), so they are included."""
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
    if _is_first():
        return pids
    children: dict[int, list[int]] = {}
    for pid in pids:
        if fields := stat_fields(f"/proc/{pid}/stat"):
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    reached = [os.getpid()]
    while reached:
        new = children.pop(reached.pop(), [])
        found.update(new)
        reached += new
    return found


def _signal_others(number: int) -> None:
    """Send a signal to all processes that the client's code has started (``_other_pids``)."""
    for pid in (-1,) if _is_first() else _other_pids():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def open_exit_fd(pid: int) -> int:
    """Return a file descriptor that becomes readable when the child process ``pid`` ends."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # the kernel lacks it, such as some versions of gVisor
        import threading

        ended, write_fd = os.pipe2(os.O_CLOEXEC)

        def wait() -> None:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            os.close(write_fd)

        threading.Thread(target=wait, daemon=True).start()
        return ended


def _reap() -> tuple[set[int], bool]:
    """Collect the exit status of ended child processes, including orphans. Return the ids of these
    processes, and whether any child process remains."""
    ended: set[int] = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended.add(pid)


def _kill_others() -> None:
    """Kill all processes that the client's code has started, and wait until they have ended."""
    remaining = True
    while remaining:
        _signal_others(signal.SIGKILL)
        _, remaining = _reap()
        time.sleep(0.002 if remaining else 0)


class Agent:
    """The agent. ``input_fd``: the file descriptor from which it reads requests. ``output_fd``: the
    file descriptor to which it writes answers."""

    def __init__(self, input_fd: int, output_fd: int) -> None:
        self.input_fd, self.output_fd = input_fd, output_fd
        self.limits: Any = None
        self.kernel_pid: int | None = None
        self.kernel_socket: Any = None
        self.kernel_output: _OutputBuffer | None = None
        self.end_reason: str | None = None
        #: The socket that listens for connections to the proxy, and the id of the process that
        #: accepts them.
        self.listener: socket.socket | None = None
        self.forwarder_pid: int | None = None
        self.operations = {
            "limits": self.set_limits,
            "network": self.open_network,
            "python": self.python,
            "command": self.command,
            "entries": files.list_files,
            "read": files.read,
            "write": files.write,
            "remove": files.remove,
        }

    def serve(self) -> None:
        while (request := receive_frame(self.input_fd)) is not None:
            if request["op"] == "stop":  # the request that it should stop has already ended
                continue
            try:
                answer = self.operations[request["op"]](request)
            except OSError as error:
                answer = {"error": error.strerror or str(error)}
            send_frame(self.output_fd, answer)

    def set_limits(self, request: Any) -> Any:
        self.limits = {**request, "in_pod": not _is_first()}
        return {"python": sys.version.split()[0]}

    def open_network(self, request: Any) -> Any:
        """Give code in the box access to the network proxy, which is outside the box."""
        # The Python kernel and the commands inherit the environment.
        os.environ.update(request["environment"])  # noqa: TID251 - of the box, not of the server
        if self.listener is None:
            self.listener = forwarder.listen(request["port"])
        return {}

    # --- running ---------------------------------------------------------------------------------

    def python(self, request: Any) -> Any:
        self.resume_processes()
        if self.kernel_pid is None:
            self.start_kernel(request["most"])
        output, kernel = self.kernel_output, self.kernel_pid
        assert output is not None and kernel is not None
        output.reset(request["most"])
        exit_fd = open_exit_fd(kernel)
        exchange = _KernelExchange(self.kernel_socket, {"code": request["code"]})
        try:
            end = self.wait_for_end(
                [output], {exit_fd}, request, lambda: os.kill(kernel, signal.SIGINT), exchange
            )
            if end != "killed":
                exchange.advance()
        except OSError:
            exchange.answer = None
        finally:
            os.close(exit_fd)
        answer = exchange.answer
        output.drain()
        text = output.text()
        if not isinstance(answer, dict):
            self.kill_kernel()
        self.pause_processes()
        kept = self.kernel_pid is not None
        if self.end_reason is None:
            self.end_reason = "died" if not kept else "done" if answer.get("ok") else "raised"
        images = [str(i) for i in answer.get("images", ())] if isinstance(answer, dict) else []
        return {"output": text, "ended": self.end_reason, "images": images, "kept": kept}

    def command(self, request: Any) -> Any:
        import subprocess

        self.resume_processes()
        out, err = _OutputBuffer(request["most"]), _OutputBuffer(request["most"])
        limits = self.limits

        def prepare() -> None:
            os.setpgid(0, 0)
            _set_dumpable(True)
            _set_limits(limits)

        shell = next(p for p in ("/bin/bash", "/usr/bin/bash", "/bin/sh") if os.path.exists(p))
        process = subprocess.Popen(
            [shell, "-c", request["command"]],
            stdin=subprocess.DEVNULL,
            stdout=out.write_fd,
            stderr=err.write_fd,
            cwd=HOME,
            preexec_fn=prepare,
        )
        os.close(out.write_fd)
        os.close(err.write_fd)
        exit_fd = open_exit_fd(process.pid)
        group = process.pid

        def stop() -> None:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

        self.wait_for_end([out, err], {exit_fd}, request, stop)
        if self.end_reason is not None:
            stop()
        code = process.wait()
        os.close(exit_fd)
        for output in (out, err):
            output.drain()
            os.close(output.read_fd)
        if request["tells"]:
            self.report_output([out, err], ended=True)
        self.pause_processes()
        return {
            "output": out.text(),
            "errors": err.text(),
            "ended": self.end_reason or "done",
            "exit_code": code if code >= 0 else 128 - code,
            "kept": self.kernel_pid is not None,
        }

    def resume_processes(self) -> None:
        """Resume the processes in the sandbox. They were paused when the agent finished its
        previous request, and will be paused again at the end of the current request."""
        self.end_reason = None
        ended, _ = _reap()
        if self.kernel_pid in ended:
            self.forget_kernel()
        _signal_others(signal.SIGCONT)
        if self.listener is not None and not self.has_forwarder():
            self.start_forwarder(self.listener)

    def has_forwarder(self) -> bool:
        """Whether the forwarder, the process that passes connections to the proxy, still runs. Code
        that runs in the box can kill the forwarder."""
        try:
            return (
                self.forwarder_pid is not None and not os.waitpid(self.forwarder_pid, os.WNOHANG)[0]
            )
        except ChildProcessError:
            return False

    def start_forwarder(self, listener: socket.socket) -> None:
        """Fork the forwarder, the process that passes connections from the box to the proxy."""
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            for fd in (self.input_fd, self.output_fd):
                os.close(fd)
            _set_limits(self.limits)
            try:
                forwarder.forward(listener)
            finally:
                os._exit(0)
        self.forwarder_pid = pid

    def pause_processes(self) -> None:
        """Pause all processes besides the agent until the next request.

        If the code was interrupted, for example by a timeout, kill the processes instead, except
        the Python kernel, which holds the variables. After a fork bomb, the kernel is killed too.
        """
        _signal_others(signal.SIGSTOP)
        if self.end_reason is None:
            return
        others = _other_pids() - {self.kernel_pid}
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if 2 * len(others) > self.limits["processes"]:
            # A fork bomb: its dead processes count until their parent, the kernel, ends.
            self.kill_kernel()

    def wait_for_end(
        self, outputs: Any, end_fds: Any, request: Any, interrupt: Any, exchange: Any = None
    ) -> str:
        """Wait until the running code ends, and enforce its limits. Return "ended" or "killed".

        - ``outputs``: the output buffers of the code.
        - ``end_fds``: file descriptors. One of them becomes readable when the code ends.
        - ``request``: the server's request, with the time limit and the output limit.
        - ``interrupt``: a function that interrupts the code.
        - ``exchange``: the request to the Python kernel that runs the code; the code has ended when
          the kernel has answered. None for a shell command.

        Code that exceeds the memory limit is killed. Code that exceeds another limit is
        interrupted, and killed if it still runs after ``GRACE_S`` seconds. In both cases,
        ``self.end_reason`` names the limit.
        """
        deadline = time.monotonic() + request["timeout"]
        kill_at, interrupt_at, report_at, share_at = None, 0.0, 0.0, 0.0
        share = ProcessorShare(_other_pids())
        max_output = FLOOD_FACTOR * request["most"] + (1 << 20)
        while True:
            ready = self.wait_for_activity(outputs, end_fds, exchange)
            if ready & end_fds or (exchange is not None and exchange.is_over):
                return "ended"
            now = time.monotonic()
            if request.get("tells") and now > report_at:
                report_at = now + REPORT_INTERVAL_S
                self.report_output(outputs)
            if not self.limits["in_pod"] and now > share_at:
                share_at = now + POLL_S
                share.check(_other_pids())
            is_flooding = sum(output.size for output in outputs) > max_output
            reason = self.limit_exceeded(ready, deadline, is_flooding)
            if kill_at is None and reason is not None:
                self.end_reason = reason
                if reason == "memory":
                    _kill_others()
                    self.forget_kernel()
                    return "killed"
                kill_at = now + GRACE_S
            if kill_at is not None and now > kill_at:
                _kill_others()
                self.forget_kernel()
                return "killed"
            # Interrupt repeatedly, because code that has just started may miss the first interrupt.
            if kill_at is not None and now > interrupt_at:
                interrupt_at = now + POLL_S
                interrupt()

    def wait_for_activity(self, outputs: Any, end_fds: Any, exchange: Any) -> Any:
        """Wait until a file descriptor is readable or ``exchange`` can send data, but at most
        ``POLL_S`` seconds. Then read the new output, and let ``exchange`` send and receive data.
        Return the readable file descriptors.

        ``exchange``: a request to the Python kernel, and the kernel's answer. None for a shell
        command.
        """
        watched = {self.input_fd, *end_fds, *(output.read_fd for output in outputs)}
        if exchange is not None:
            watched.add(exchange.fd)
        sending = [exchange.fd] if exchange is not None and exchange.is_sending else []
        ready = set(select.select(list(watched), sending, [], POLL_S)[0])
        for output in outputs:
            if output.read_fd in ready:
                output.drain()
        if exchange is not None:
            exchange.advance()
        return ready

    def report_output(self, outputs: Any, ended: bool = False) -> None:
        """Send the server the output that was written since the last report. ``ended``: whether the
        command has ended."""
        written = [output.new_text(ended) for output in outputs]
        if any(written):
            send_frame(self.output_fd, {"written": written})

    def limit_exceeded(self, readable: Any, deadline: float, is_flooding: bool) -> str | None:
        """Return the reason why the running code must end. Return None if it may continue.

        - ``readable``: the readable file descriptors. If ``input_fd`` is readable, the server wants
          to stop the code, or the server has ended.
        - ``deadline``: the end of the time limit, in seconds of ``time.monotonic``.
        - ``is_flooding``: whether the code has written too much output.
        """
        if self.input_fd in readable:
            if receive_frame(self.input_fd) is None and _is_first():  # the server has ended
                os._exit(0)
            return "stopped"
        if time.monotonic() > deadline:
            return "timeout"
        if is_flooding:
            return "output"
        return "memory" if _memory_used() > self.limits["memory"] else None

    def start_kernel(self, max_chars: int) -> None:
        """Fork the Python kernel, the process that runs Python code. A fork is faster than starting
        a new interpreter."""
        self.kernel_output = output = _OutputBuffer(max_chars)
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            for fd in (self.input_fd, self.output_fd, output.read_fd):
                os.close(fd)
            if self.listener is not None:
                self.listener.close()
            ours.close()
            os.dup2(output.write_fd, 1)
            os.dup2(output.write_fd, 2)
            os.close(output.write_fd)
            _set_dumpable(True)
            _set_limits(self.limits)
            Kernel(theirs.detach()).serve()
            os._exit(0)
        theirs.close()
        os.close(output.write_fd)
        self.kernel_pid, self.kernel_socket = pid, ours

    def kill_kernel(self) -> None:
        """Kill the Python kernel and all other processes that run besides the agent."""
        if self.kernel_pid is not None:
            _kill_others()
            self.forget_kernel()

    def forget_kernel(self) -> None:
        """Read the last output of the Python kernel process, which has ended. Then forget its
        process id, so that the next request starts a new kernel."""
        if self.kernel_pid is not None:
            assert self.kernel_output is not None
            self.kernel_output.drain()
            self.kernel_pid = None


def main() -> None:
    """Run the agent. It reads requests from standard input and writes answers to standard output,
    until the server closes standard input."""
    input_fd, output_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_dumpable(False)
    del sys.path[0]  # the folder of this package
    Agent(input_fd, output_fd).serve()
    os._exit(0)
