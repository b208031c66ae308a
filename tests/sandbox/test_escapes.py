"""Attempts of code in a box to escape from it or to exceed its limits."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from antiphon.errors import ToolError
from antiphon.sandbox.agent_client import AgentBox
from antiphon.sandbox.shared_folder import SharedFolder
from tests.sandbox.real_sandboxes import SMALL, open_box

pytestmark = pytest.mark.e2e

CALL = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    return errno.errorcode[ctypes.get_errno()] if libc.syscall(*arguments) < 0 else "allowed"
def attempt(work):
    try:
        return work()
    except OSError as error:
        return errno.errorcode[error.errno]
"""


@pytest.fixture
async def box() -> AsyncIterator[AgentBox]:
    async with open_box() as box:
        yield box


async def output_of(box: AgentBox, code: str, timeout_s: float = 60) -> str:
    result = await box.python(CALL + code, timeout_s=timeout_s, max_chars=4000)
    assert result.end_reason in ("done", "raised"), result
    return result.output.strip()


async def test_files_of_the_host_are_invisible(box: AgentBox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    code = f"""
[os.path.exists(p) for p in ({str(secret)!r}, '/etc/shadow', '/etc/passwd', '/home', '/root',
 '/var', '/sys', '/opt', {os.getcwd()!r}, '/srv')]
"""
    assert await output_of(box, code) == str([False] * 10)


@pytest.mark.parametrize("path", ["/x", "/usr/x", "/bin/x", "/etc/x", "/dev/x", "/proc/sys/x"])
async def test_system_folders_are_read_only(box: AgentBox, path: str) -> None:
    refused = await output_of(box, f"attempt(lambda: open({path!r}, 'w'))")
    assert refused in ("'EROFS'", "'EACCES'", "'EPERM'", "'ENOENT'")


async def test_box_has_no_network(box: AgentBox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        code = f"import socket; attempt(lambda: socket.create_connection(('127.0.0.1', {port}), 2))"
        assert await output_of(box, code) == "'ECONNREFUSED'"
    assert await output_of(box, "[name for _, name in socket.if_nameindex()]") == "['lo']"


async def test_abstract_sockets_of_the_host_are_unreachable(box: AgentBox) -> None:
    with socket.socket(socket.AF_UNIX) as host:
        host.bind("\0antiphon-escape-test")
        host.listen()
        code = """
import socket
attempt(lambda: socket.socket(socket.AF_UNIX).connect(chr(0) + 'antiphon-escape-test'))
"""
        assert await output_of(box, code) == "'ECONNREFUSED'"


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_PACKET", "AF_ALG", "AF_BLUETOOTH"])
async def test_socket_families_that_bypass_the_network_namespace_are_denied(
    box: AgentBox, family: str
) -> None:
    code = f"import socket; attempt(lambda: socket.socket(socket.{family}, socket.SOCK_RAW))"
    assert await output_of(box, code) == "'EAFNOSUPPORT'"


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("ptrace", "101, 16, 1, 0, 0"),
        ("process_vm_readv", "310, 1, 0, 0, 0, 0, 0"),
        ("mount", "165, b'none', b'/tmp', b'tmpfs', 0, 0"),
        ("unshare user", "272, 0x10000000"),
        ("unshare mounts", "272, 0x20000"),
        ("clone user", "56, 0x10000000 | 17, 0, 0, 0, 0"),
        ("setns", "308, 0, 0"),
        ("keyctl", "250, 0, -3, 0"),
        ("add_key", "248, b'user', b'a', b'b', 1, -3"),
        ("bpf", "321, 0, 0, 0"),
        ("io_uring_setup", "425, 8, 0"),
        ("userfaultfd", "323, 0"),
        ("perf_event_open", "298, 0, 0, 0, 0, 0"),
        ("open_by_handle_at", "304, 0, 0, 0"),
        ("chroot", "161, b'/tmp'"),
        ("memfd_create", "319, b'm', 0"),
        ("shmget", "29, 0, 1 << 20, 0o1600"),
        ("reboot", "169, 0, 0, 0"),
        ("fsopen", "430, b'tmpfs', 0"),
    ],
)
async def test_dangerous_system_calls_are_denied(box: AgentBox, name: str, call: str) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("these are the numbers of x86-64")
    assert await output_of(box, f"call({call})") == "'EPERM'"


async def test_clone3_and_x32_calls_return_enosys(box: AgentBox) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("these are the numbers of x86-64")
    assert await output_of(box, "call(435, 0, 0), call(0x40000000 + 39)") == "('ENOSYS', 'ENOSYS')"


async def test_code_has_no_capabilities_and_cannot_gain_any(box: AgentBox) -> None:
    status = await output_of(box, "print(open('/proc/self/status').read())")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[f"Cap{each}"].strip() for each in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {
        "0" * 16
    }
    assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2"
    assert await output_of(box, "os.getuid(), attempt(lambda: os.setuid(0))") == "(1000, 'EINVAL')"


async def test_only_processes_of_the_box_are_visible(box: AgentBox) -> None:
    pids = await output_of(box, "sorted(int(p) for p in os.listdir('/proc') if p.isdigit())")
    assert pids == "[1, 2]"
    for look in ("/proc/1/mem", "/proc/1/environ", "/proc/1/root/etc"):
        refused = await output_of(box, f"attempt(lambda: os.open({look!r}, os.O_RDONLY))")
        assert refused in ("'EACCES'", "'EPERM'"), look


async def test_agent_cannot_be_killed_or_stopped_from_inside(box: AgentBox) -> None:
    for number in ("KILL", "STOP", "TERM", "INT"):
        await output_of(box, f"import signal; attempt(lambda: os.kill(1, signal.SIG{number}))")
    assert await output_of(box, "1 + 1") == "2"


async def test_process_whose_name_is_no_text_does_not_end_the_box(box: AgentBox) -> None:
    name = "import ctypes, time\nctypes.CDLL(None).prctl(15, b'\\xff', 0, 0, 0)"
    assert await output_of(box, f"{name}\nkept = 1\ntime.sleep(0.5)") == ""
    assert await output_of(box, "print(kept)") == "1"


async def test_links_out_of_the_folder_are_not_followed(box: AgentBox) -> None:
    await output_of(
        box,
        "os.symlink('/proc/1/environ', 'env'); os.symlink('/usr', 'usr'); os.mkfifo('pipe');"
        " os.symlink('/etc/ld.so.cache', 'cache'); open('plain', 'w').close()",
    )
    assert [entry.path for entry in await box.list_files()] == ["plain"]
    for path in ("env", "usr/bin/env", "cache", "pipe", "../../usr/bin/env", "/usr/bin/env", ".."):
        async with asyncio.timeout(80):
            assert await box.read(path) is None, path


async def test_boxes_are_isolated_from_each_other(box: AgentBox) -> None:
    async with open_box() as other:
        await output_of(
            box, "open('/mnt/data/mine', 'w').write('x'); open('/tmp/mine', 'w').close()"
        )
        await output_of(box, "open('/dev/shm/mine', 'w').close()")
        look = "os.listdir('/mnt/data'), os.listdir('/tmp'), os.listdir('/dev/shm')"
        assert await output_of(other, look) == "([], [], [])"
        assert await other.list_files() == ()


async def test_fork_bomb_stops_at_the_process_limit(box: AgentBox) -> None:
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    async with asyncio.timeout(80):
        result = await box.python(bomb, timeout_s=0.5, max_chars=1000)
        assert result.end_reason in ("timeout", "memory")
        left = await output_of(box, "len([p for p in os.listdir('/proc') if p.isdigit()])")
        assert left == "2"
    count = """
pids = []
try:
    while len(pids) < 500:
        pid = os.fork()
        if not pid:
            import time; time.sleep(90); os._exit(0)
        pids.append(pid)
except BlockingIOError:
    pass
print(len(pids))
for pid in pids:
    os.kill(pid, 9)
"""
    assert int(await output_of(box, count)) <= SMALL.processes


async def test_memory_limit_ends_code(box: AgentBox) -> None:
    assert "MemoryError" in await output_of(box, "x = bytearray(1 << 30)")
    bomb = """
import os, time
for _ in range(20):
    if not os.fork():
        kept = bytearray(os.urandom(1 << 20)) * 60
        time.sleep(90)
        os._exit(0)
time.sleep(90)
"""
    async with asyncio.timeout(80):
        result = await box.python(bomb, timeout_s=60, max_chars=1000)
    assert result.end_reason == "memory" and not result.variables_kept
    assert await output_of(box, "2 + 2") == "4"


@pytest.mark.parametrize(
    "bomb",
    [
        "import mmap, time\nkept = [mmap.mmap(-1, 1 << 20) for _ in range(150)]\n"
        "for each in kept:\n    each.write(bytes(1 << 20))\ntime.sleep(90)",
        "import os, time\nfor n in range(10**9):\n    os.close(os.open(f'/tmp/{n}', os.O_CREAT))",
    ],
    ids=["shared", "files"],
)
async def test_shared_memory_and_file_metadata_count_as_memory(bomb: str) -> None:
    async with open_box(replace(SMALL, memory_bytes=64 << 20)) as box, asyncio.timeout(80):
        result = await box.python(bomb, timeout_s=60, max_chars=1000)
    assert result.end_reason == "memory"


@pytest.mark.parametrize("folder", ["/mnt/data", "/tmp", "/dev/shm"])
async def test_disk_and_file_size_limits_hold(box: AgentBox, folder: str) -> None:
    fill = f"""
def fill():
    for number in range(1000):
        with open('{folder}/' + str(number), 'wb') as file:
            file.write(bytes(1 << 20))
attempt(fill)
"""
    assert await output_of(box, fill, timeout_s=60) == "'ENOSPC'"
    big = "open('/mnt/data/big', 'wb').truncate(1 << 30)"
    assert await output_of(box, f"attempt(lambda: {big})") == "'EFBIG'"


async def test_closing_a_box_ends_all_its_processes(box: AgentBox) -> None:
    marker = f"antiphon-escape-{os.getpid()}"
    started = f'read -rd "" name < /proc/$!/cmdline && [ "$name" = {marker} ]'
    await box.command(
        f"nohup bash -c 'exec -a {marker} sleep 600' & until {started}; do sleep 0.01; done",
        timeout_s=60,
        max_chars=100,
    )
    assert _pids_with_argument(marker)
    await box.close()
    async with asyncio.timeout(80):
        while _pids_with_argument(marker):
            await asyncio.sleep(0)


def _pids_with_argument(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def test_shared_files_are_readable_executable_and_read_only(box: AgentBox) -> None:
    await box.share("a", {"SKILL.md": b"read me", "bin/x": b"#!/bin/sh\necho ran"}, ["bin/x"])
    assert await output_of(box, "print(open('/mnt/skills/a/SKILL.md').read())") == "read me"
    ran = await box.command("/mnt/skills/a/bin/x", timeout_s=60, max_chars=99)
    assert (ran.output, ran.exit_code) == ("ran\n", 0)
    code = """
path = '/mnt/skills/a/SKILL.md'
[attempt(work) for work in (
    lambda: open(path, 'w'),
    lambda: os.chmod(path, 0o777),
    lambda: os.unlink(path),
    lambda: os.rename(path, path + '2'),
    lambda: os.symlink('/mnt/data', '/mnt/skills/a/link'),
    lambda: os.link(path, '/mnt/data/own'),
    lambda: os.mkdir('/mnt/skills/b'),
)]
"""
    refused = await output_of(box, code)
    assert "None" not in refused and refused.count("'E") == 7, refused
    await box.share("a", {"SKILL.md": b"another"}, [])
    assert await output_of(box, "print(open('/mnt/skills/a/SKILL.md').read())") == "another"
    assert await output_of(box, "os.listdir('/mnt/skills/a')") == "['SKILL.md']"


async def test_shared_files_stay_in_their_folder_and_are_deleted_on_close(box: AgentBox) -> None:
    with pytest.raises(ToolError, match="leads out"):
        await box.share("a", {"../../x": b""}, [])
    with pytest.raises(ToolError, match="not enough disk space"):
        await box.share("a", {"x": bytes(SMALL.disk_bytes + 1)}, [])
    assert await output_of(box, "os.listdir('/mnt/skills')") == "[]"
    await box.share("a", {"x": b""}, [])
    folder = box._shared.visible
    assert (folder / "a" / "x").exists()
    await box.close()
    assert not folder.parent.exists()
    with pytest.raises(ToolError):
        await box.share("a", {"x": b""}, [])


async def test_code_runs_with_low_priority(box: AgentBox) -> None:
    code = "(os.sched_getscheduler(0) == os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0))"
    assert await output_of(box, code) == "(True, 10)"
    command = f"/usr/bin/env python3 -c 'import os; print({code})'"
    ran = await box.command(command, timeout_s=60, max_chars=1000)
    assert ran.output.strip() == "(True, 10)", ran


#: Computes with two threads in each of four processes until they are in the idle scheduling class.
COMPUTE = """
import os, threading
def compute():
    while os.sched_getscheduler(0) != os.SCHED_IDLE:
        pass
children = []
while len(children) < 3 and (not children or children[-1]):
    children.append(os.fork())
threads = [threading.Thread(target=compute) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if not children[-1]:
    os._exit(0)
[os.waitpid(pid, 0)[1] for pid in children]
"""


async def test_many_tasks_that_compute_get_idle_time(box: AgentBox) -> None:
    """So that they do not slow the models of the server."""
    assert await output_of(box, COMPUTE, timeout_s=60) == "[0, 0, 0]"


@pytest.mark.parametrize("is_idle", [False, True], ids=["low", "idle"])
@pytest.mark.parametrize(
    "attempt",
    [
        "os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        "os.setpriority(os.PRIO_PROCESS, 0, 0)",
        "__import__('resource').setrlimit(13, (40, 40))",
    ],
    ids=["class", "real time", "nice", "limit"],
)
async def test_code_cannot_raise_its_priority(box: AgentBox, attempt: str, is_idle: bool) -> None:
    code = f"""
if {is_idle}:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
try:
    {attempt}
except (OSError, ValueError):
    pass
(os.sched_getscheduler(0) == os.SCHED_IDLE, os.getpriority(os.PRIO_PROCESS, 0))
"""
    assert await output_of(box, code) == f"({is_idle}, 10)"


# --- the agent -----------------------------------------------------------------------------------


async def test_half_a_frame_to_the_agent_does_not_stop_the_memory_limit(box: AgentBox) -> None:
    code = """
import gc, os, struct, time
(kernel,) = [o for o in gc.get_objects() if type(o).__name__ == "Kernel"]
os.write(kernel.control_fd, struct.pack(">I", 4000) + b"{")
children = [os.fork() for _ in range(3)]
block = b"x" * (100 << 20)
time.sleep(90)
"""
    result = await box.python(CALL + code, timeout_s=60, max_chars=4000)
    assert result.end_reason == "memory" and not result.variables_kept
    assert (await box.python("1 + 1", timeout_s=60, max_chars=100)).output.strip() == "2"


async def test_kernel_that_does_not_read_cannot_block_the_agent(box: AgentBox) -> None:
    """The next code is longer than the buffers of the socket to the stopped kernel."""
    code = """
import gc, os, threading, time
(kernel,) = [o for o in gc.get_objects() if type(o).__name__ == "Kernel"]
def never(*arguments):
    time.sleep(60)
type(kernel).serve.__globals__["receive_frame"] = never
"""
    await box.python(code, timeout_s=60, max_chars=100)
    long_code = "x = 1\n" * 400_000
    result = await box.python(long_code, timeout_s=1, max_chars=100)
    assert result.end_reason == "timeout"
    assert (await box.python("1 + 1", timeout_s=60, max_chars=100)).output.strip() == "2"


async def test_sparse_file_is_not_read(box: AgentBox) -> None:
    code = "with open('/mnt/data/holes', 'wb') as f: f.truncate(7 << 20)"
    await output_of(box, code)
    with pytest.raises(ToolError, match="sparse"):
        await box.read("holes")
    await output_of(box, "with open('/mnt/data/whole', 'wb') as f: f.write(b'x' * (3 << 20))")
    assert await box.read("whole") == b"x" * (3 << 20)


async def test_fifo_beside_a_file_does_not_block_writing_it(box: AgentBox) -> None:
    await output_of(box, "os.mkfifo('/mnt/data/a.part'); os.mkfifo('/mnt/data/a')")
    await box.write("a", b"content")
    assert await box.read("a") == b"content"
    assert await output_of(box, "oct(os.stat('/mnt/data/a').st_mode)") == "'0o100644'"


async def test_system_v_semaphores_are_denied(box: AgentBox) -> None:
    numbers = {"x86_64": (29, 64, 68), "aarch64": (194, 190, 186)}
    code = f"""
import platform
[call(number, 0, 1, 0o1600) for number in {numbers!r}[platform.machine()]]
"""
    assert await output_of(box, code) == str(["EPERM"] * 3)


async def test_kernel_memory_of_watches_and_queues_is_denied(box: AgentBox) -> None:
    numbers = {"x86_64": (206, 253, 294), "aarch64": (0, 26)}
    code = f"""
import platform
{{call(number, 0, 0) for number in {numbers!r}[platform.machine()]}}
"""
    assert await output_of(box, code) == str({"EPERM"})


async def test_code_stays_in_the_session_in_which_its_priority_counts(box: AgentBox) -> None:
    """A new session would have the full weight of the server's (autogroups, sched(7))."""
    assert await output_of(box, "attempt(os.setsid)") == "'EPERM'"
    forks = """
pid = os.fork()
if not pid:
    os._exit(attempt(os.setsid) != "EPERM")
os.waitpid(pid, 0)[1]
"""
    assert await output_of(box, forks) == "0"


async def test_code_cannot_reach_the_terminal_of_the_server(box: AgentBox) -> None:
    """The box is in the session of the server, so a terminal of this session would be its own."""
    assert await output_of(box, "os.path.samefile('/dev/tty', '/dev/null')") == "True"
    typing = """
import fcntl, pty
fd = pty.openpty()[1]
[attempt(lambda: fcntl.ioctl(fd, request, b"x")) for request in (0x5412, 0x541C)]
"""
    assert await output_of(box, typing) == "['EPERM', 'EPERM']"


async def test_buffers_of_sockets_keep_their_size(box: AgentBox) -> None:
    code = """
import socket
one, other = socket.socketpair()
def sizes():
    return [one.getsockopt(socket.SOL_SOCKET, name) for name in (7, 8)]
before = sizes()
for option in (7, 8, 32, 33):
    one.setsockopt(socket.SOL_SOCKET, option, 1 << 24)
one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
sizes() == before
"""
    assert await output_of(box, code) == "True"


async def test_buffers_of_sockets_count_as_memory(box: AgentBox) -> None:
    code = """
import socket, time
for _ in range(20):
    if not os.fork(): break
pairs = [socket.socketpair() for _ in range(220)]
for one, other in pairs:
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
    try:
        while True: one.send(b"x" * 65536)
    except BlockingIOError: pass
time.sleep(90)
"""
    result = await box.python("import os\n" + code, timeout_s=60, max_chars=4000)
    assert result.end_reason == "memory"


#: A process that opens a folder and ends without closing it.
_CRASH = """
import os
from antiphon.sandbox.shared_folder import SharedFolder
folder = SharedFolder.open(None)
os._exit(0)
"""


async def test_folders_of_a_crashed_server_are_deleted_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alive = SharedFolder.open(None)
    subprocess.run([sys.executable, "-c", _CRASH], env={**os.environ, "TMPDIR": str(tmp_path)})
    (crashed,) = set(tmp_path.iterdir()) - {alive.visible.parent}
    (tmp_path / "antiphon-box-link").symlink_to(alive.visible)
    (tmp_path / "other").mkdir()
    assert SharedFolder.remove_abandoned(None) == 1
    assert not crashed.exists() and alive.visible.exists()
    assert (tmp_path / "other").exists()
    alive.close()
    assert not alive.visible.exists()
