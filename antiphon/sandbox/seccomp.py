"""The seccomp filter of a box (a sandbox environment). It is a classic BPF program, written by
hand.

The filter denies system calls that are dangerous for the kernel or that reach outside the box.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Mapping

#: Machine → its AUDIT_ARCH (linux/audit.h), and the column with its system call numbers in the
#: tables below.
ARCHITECTURES: Mapping[str, tuple[int, int]] = {
    "x86_64": (0xC000003E, 0),
    "aarch64": (0xC00000B7, 1),
}

#: Denied system call → its number on x86-64 and arm64 (asm/unistd_64.h, asm-generic/unistd.h).
_DENIED_CALLS: Mapping[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "setns": (308, 268),
    "unshare": (272, 97),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # These calls create memory that belongs to no process. The agent cannot count it.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    # The memory of these queues and watches belongs to no process either.
    "io_setup": (206, 0),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    # A new session would be an autogroup of its own, with the full weight of the server's
    # (sched(7)). The priority of its processes would then mean nothing to the server's.
    "setsid": (112, 157),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "syslog": (103, 116),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "nfsservctl": (180, 42),
}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_SOCKET, _SOCKETPAIR, _SETSOCKOPT = (41, 198), (53, 199), (54, 208)
_IOCTL = (16, 29)

#: This bit is set in all system call numbers of the x32 ABI.
_X32_BIT = 0x40000000
#: CLONE_NEWTIME to CLONE_NEWNET: all flags that create a namespace (linux/sched.h).
_NAMESPACE_FLAGS = 0x7E020080
_ALLOWED_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET and AF_INET6 of Linux
_NETLINK = 16
_SOL_SOCKET = 1
#: SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE and SO_RCVBUFFORCE (asm-generic/socket.h).
_BUFFER_OPTIONS = (7, 8, 32, 33)
#: TIOCSTI and TIOCLINUX: put characters into the input of a terminal (asm-generic/ioctls.h).
_TERMINAL_INPUT = (0x5412, 0x541C)

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
#: Offsets in ``struct seccomp_data``: call number, architecture, lower halves of the arguments.
_NUMBER, _ARCH, _ARGUMENT = 0, 4, (16, 24, 32)


def build_filter(machine: str) -> bytes:
    """Return the seccomp filter for a CPU architecture, as a BPF program. ``machine``: the
    architecture, as ``platform.machine()`` names it. Raises ``KeyError`` if it is unknown."""
    arch, column = ARCHITECTURES[machine]
    instructions = [
        _instruction(_LOAD, _ARCH),
        _instruction(_EQUAL, arch, 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        instructions += [
            _instruction(_AT_LEAST, _X32_BIT, 0, 1),
            _instruction(_RETURN, _ERRNO | errno.ENOSYS),
        ]
    for numbers in _DENIED_CALLS.values():
        number = numbers[column]
        if number is not None:
            instructions += [
                _instruction(_EQUAL, number, 0, 1),
                _instruction(_RETURN, _ERRNO | errno.EPERM),
            ]
    instructions += _for_call(_CLONE3[column], [_instruction(_RETURN, _ERRNO | errno.ENOSYS)])
    instructions += _for_call(_CLONE[column], [*_clone_rules()])
    for numbers in (_SOCKET, _SOCKETPAIR):
        instructions += _for_call(numbers[column], [*_socket_rules()])
    instructions += _for_call(_SETSOCKOPT[column], [*_socket_option_rules()])
    instructions += _for_call(_IOCTL[column], [*_ioctl_rules()])
    return b"".join([*instructions, _instruction(_RETURN, _ALLOW)])


def _clone_rules() -> Iterator[bytes]:
    """Yield the instructions for the system call ``clone``. New processes and threads are allowed.
    New namespaces are denied."""
    yield _instruction(_LOAD, _ARGUMENT[0])
    yield _instruction(_ANY_BIT, _NAMESPACE_FLAGS, 0, 1)
    yield _instruction(_RETURN, _ERRNO | errno.EPERM)
    yield _instruction(_RETURN, _ALLOW)


def _socket_rules() -> Iterator[bytes]:
    """Yield the instructions for the system calls that create sockets. UNIX and IP sockets are
    allowed. Of the netlink protocols, only the route protocol is allowed, because libraries use it.

    All other sockets are denied. For example, AF_VSOCK would bypass network namespaces.
    """
    yield _instruction(_LOAD, _ARGUMENT[0])
    for family in _ALLOWED_FAMILIES:
        yield _instruction(_EQUAL, family, 0, 1)
        yield _instruction(_RETURN, _ALLOW)
    yield _instruction(_EQUAL, _NETLINK, 0, 3)
    yield _instruction(_LOAD, _ARGUMENT[2])
    yield _instruction(_EQUAL, 0, 0, 1)
    yield _instruction(_RETURN, _ALLOW)
    yield _instruction(_RETURN, _ERRNO | errno.EAFNOSUPPORT)


def _socket_option_rules() -> Iterator[bytes]:
    """Yield the instructions for the system call ``setsockopt``. The call has no effect if it would
    change the size of a buffer: the agent counts each socket as a full buffer of the usual size."""
    yield _instruction(_LOAD, _ARGUMENT[1])
    yield _instruction(_EQUAL, _SOL_SOCKET, 1, 0)
    yield _instruction(_RETURN, _ALLOW)
    yield _instruction(_LOAD, _ARGUMENT[2])
    for option in _BUFFER_OPTIONS:
        yield _instruction(_EQUAL, option, 0, 1)
        yield _instruction(_RETURN, _ERRNO)
    yield _instruction(_RETURN, _ALLOW)


def _ioctl_rules() -> Iterator[bytes]:
    """Yield the instructions for the system call ``ioctl``. Code may not type into a terminal: the
    box is in the session of the server, whose terminal it could control."""
    yield _instruction(_LOAD, _ARGUMENT[1])
    for request in _TERMINAL_INPUT:
        yield _instruction(_EQUAL, request, 0, 1)
        yield _instruction(_RETURN, _ERRNO | errno.EPERM)
    yield _instruction(_RETURN, _ALLOW)


def _for_call(number: int, instructions: list[bytes]) -> list[bytes]:
    """Return BPF instructions that skip ``instructions`` for all system calls except one.
    ``number``: the number of this system call."""
    return [_instruction(_EQUAL, number, 0, len(instructions)), *instructions]


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """Encode a BPF instruction. ``code``: the operation. ``value``: its constant operand. ``yes``
    and ``no``: the number of instructions to skip if a comparison is true or false."""
    return struct.pack("=HBBI", code, yes, no, value)
