"""The filter of system calls in a box: a classic BPF program, written by hand.

What reaches deep into the kernel or beyond the box is refused. It knows numbers of calls and
nothing of what is run.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator, Mapping

__all__ = ["ARCHITECTURES", "program"]

#: Machine → its AUDIT_ARCH, and its column below (linux/audit.h).
ARCHITECTURES: Mapping[str, tuple[int, int]] = {
    "x86_64": (0xC000003E, 0),
    "aarch64": (0xC00000B7, 1),
}

#: Call → its number on x86-64 and on arm64 (asm/unistd_64.h, asm-generic/unistd.h).
_REFUSED: Mapping[str, tuple[int | None, int | None]] = {
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
    # memory that belongs to no process, so that nobody could count it
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
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
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)

#: Calls of the x32 ABI have this bit.
_X32 = 0x40000000
#: CLONE_NEWTIME to CLONE_NEWNET: every flag that makes a namespace (linux/sched.h).
_NAMESPACES = 0x7E020080
_FAMILIES = (int(socket.AF_UNIX), int(socket.AF_INET), 10)  # 10: AF_INET6
_NETLINK = 16

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
#: Where ``struct seccomp_data`` has the number, the architecture and the arguments' lower halves.
_NUMBER, _ARCH, _ARGUMENT = 0, 4, (16, 24, 32)


def program(machine: str) -> bytes:
    """The filter for a machine (``platform.machine()``). Raises ``KeyError`` for one not known."""
    arch, column = ARCHITECTURES[machine]
    steps = [
        _step(_LOAD, _ARCH),
        _step(_EQUAL, arch, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        steps += [_step(_AT_LEAST, _X32, 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            steps += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ERRNO | errno.EPERM)]
    steps += _where(_CLONE3[column], [_step(_RETURN, _ERRNO | errno.ENOSYS)])
    steps += _where(_CLONE[column], [*_namespaces()])
    for numbers in (_SOCKET, _SOCKETPAIR):
        steps += _where(numbers[column], [*_families()])
    return b"".join([*steps, _step(_RETURN, _ALLOW)])


def _namespaces() -> Iterator[bytes]:
    """``clone`` makes processes and threads, and no namespaces."""
    yield _step(_LOAD, _ARGUMENT[0])
    yield _step(_ANY_BIT, _NAMESPACES, 0, 1)
    yield _step(_RETURN, _ERRNO | errno.EPERM)
    yield _step(_RETURN, _ALLOW)


def _families() -> Iterator[bytes]:
    """Sockets of the usual kinds; of netlink only routes, which libraries ask about. AF_VSOCK, for
    one, would lead out of every network namespace."""
    yield _step(_LOAD, _ARGUMENT[0])
    for family in _FAMILIES:
        yield _step(_EQUAL, family, 0, 1)
        yield _step(_RETURN, _ALLOW)
    yield _step(_EQUAL, _NETLINK, 0, 3)
    yield _step(_LOAD, _ARGUMENT[2])
    yield _step(_EQUAL, 0, 0, 1)
    yield _step(_RETURN, _ALLOW)
    yield _step(_RETURN, _ERRNO | errno.EAFNOSUPPORT)


def _where(number: int, steps: list[bytes]) -> list[bytes]:
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)
