"""The share of processor time that code in a box gets.

A short calculation must not wait behind a model that generates: in the idle scheduling class, 50 ms
of work took 16 s on a machine with one busy process per processor. On the other hand, many
computing processes must not slow the model down. So code starts with a tenth of the scheduling
weight of other processes. Code is moved to the idle class once it runs many tasks at a time or has
computed for long.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator

__all__ = ["ProcessorShare", "lower_priority"]

#: A tenth of the weight of a process with nice value 0 (sched(7)).
NICE = 10
#: Tasks that may run or be ready at a time, and processor seconds that a request may use, before
#: its code is moved to the idle class.
FREE_TASKS, FREE_CPU_S = 4, 10.0
#: Linux's number, which the module ``resource`` does not name.
_RLIMIT_NICE = 13


def lower_priority() -> None:
    """Lower the priority of the calling process and its children. Setting RLIMIT_NICE to 0 prevents
    them from raising it again and from leaving the idle class (sched(7))."""
    resource.setrlimit(_RLIMIT_NICE, (0, 0))
    os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))


class ProcessorShare:
    """Watches the processes of one request, and moves them to the idle class if there are many or
    if they compute for long.

    ``pids``: the processes that already run before the request.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._cpu_s = _cpu_seconds(pids)
        self._is_used_up = False

    def check(self, pids: Iterable[int]) -> None:
        """Measure the processes, and move them to the idle class if they exceed a threshold. Call
        it repeatedly, because later calls include processes that have started since."""
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
                except OSError:  # the task has ended, or the kernel lacks the class
                    continue


def _cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of the processes and of their ended children."""
    ticks = sum(sum(map(int, _stat(f"/proc/{pid}/stat")[11:15])) for pid in pids)
    times = os.times()
    return ticks / os.sysconf("SC_CLK_TCK") + times.children_user + times.children_system


def _tasks(pids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the process id and the thread id of each thread."""
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for name in names:
            yield pid, int(name)


def _is_runnable(pid: int, task: int) -> bool:
    return _stat(f"/proc/{pid}/task/{task}/stat")[:1] == ["R"]


def _stat(path: str) -> list[str]:
    """Return the fields of a ``stat`` file, beginning with the state (proc(5)). Returns an empty
    list if the process has ended."""
    try:
        with open(path) as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
