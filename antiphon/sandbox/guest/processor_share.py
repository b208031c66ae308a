"""Limits the share of processor time that code in a box (sandbox environment) gets.

- A short calculation must not wait for a model that generates on the same machine, so code does not
  start in Linux' idle scheduling class: on a machine with one busy process per processor, 50 ms of
  work took 16 s in this class. Code starts in the normal scheduling class, with a tenth of the
  weight of other processes.
- Many computing processes must not slow the model down, so code that runs many threads at a time or
  computes for long is moved to the idle class.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator

#: A nice value. It gives a tenth of the weight of a process with nice value 0 (sched(7)).
NICE = 10
#: The code of a request is moved to the idle class if more than ``FREE_TASKS`` of its threads run
#: or are ready to run, or if it has used more than ``FREE_CPU_S`` seconds of processor time.
FREE_TASKS, FREE_CPU_S = 4, 10.0
#: Linux's number for RLIMIT_NICE. The module ``resource`` has no name for it.
_RLIMIT_NICE = 13


def lower_priority() -> None:
    """Lower the priority of the calling process and of its future children.

    RLIMIT_NICE is set to 0, so these processes cannot raise their priority again. If
    ``ProcessorShare`` moves them to Linux's idle scheduling class later, they cannot leave this
    class (sched(7)).
    """
    resource.setrlimit(_RLIMIT_NICE, (0, 0))
    os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))


class ProcessorShare:
    """Limits how much the code of one request slows down other processes of the machine. If too
    many threads of the code run at a time, or if the code uses too much processor time, its
    processes are moved to Linux's scheduling class for idle work.

    ``pids``: the processes that run before the request begins. The processor time that they have
    used until then does not count.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._cpu_s = _cpu_seconds(pids)
        self._is_used_up = False

    def check(self, pids: Iterable[int]) -> None:
        """Measure the processes ``pids``, which are all processes that run now. If they have used
        too much processor time or run too many threads, move them to the idle scheduling class.
        Call this method repeatedly, because new processes may have started since the last call."""
        pids = list(pids)
        self._is_used_up = (
            self._is_used_up
            or _cpu_seconds(pids) - self._cpu_s > FREE_CPU_S
            or sum(_is_runnable(pid, task) for pid, task in _tasks(pids)) > FREE_TASKS
        )
        if self._is_used_up:
            for _, task in _tasks(pids):
                try:
                    os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
                except OSError:  # the thread has ended, or the kernel lacks the idle class
                    continue


def _cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time in seconds that has been used by the processes ``pids`` and by
    child processes of this process that have ended."""
    ticks = sum(sum(map(int, stat_fields(f"/proc/{pid}/stat")[11:15])) for pid in pids)
    times = os.times()
    return ticks / os.sysconf("SC_CLK_TCK") + times.children_user + times.children_system


def _tasks(pids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the process id and the thread id of each thread of the processes ``pids``."""
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for name in names:
            yield pid, int(name)


def _is_runnable(pid: int, task: int) -> bool:
    return stat_fields(f"/proc/{pid}/task/{task}/stat")[:1] == ["R"]


def stat_fields(path: str) -> list[str]:
    """Return the fields of a ``stat`` file in /proc from the third field on, which is the state of
    the process (proc(5)). The list is empty if the process or thread has ended."""
    try:
        with open(path, errors="replace") as file:  # code names its processes and threads
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
