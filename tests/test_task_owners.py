"""Tasks have an owner, and nothing suppresses a cancellation. Read from the sources."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.sources import PACKAGE, modules_with, nodes

#: Module that creates tasks itself → number of places, and the reason, which a comment there
#: repeats. All other tasks are started by ``antiphon.support.tasks`` or by ``asyncio.TaskGroup``.
CREATES_TASKS: dict[str, tuple[int, str]] = {
    "support/tasks.py": (3, "gives tasks their owners"),
    "runs/execution/run.py": (2, "the path of foreground runs; the next write awaits the task"),
    "http/streaming/disconnect.py": (1, "the request must not wait for the end of the task"),
    "http/streaming/keepalive.py": (1, "a task per stream would cost more than a timer"),
    "http/server/connections.py": (1, "the path of every request"),
    "engines/llama/engine.py": (1, "the next turn may start before the task has ended"),
}
#: Module whose handlers of ``BaseException`` do not raise it again → reason.
SUPPRESSES_ALL: dict[str, str] = {
    "sandbox/guest/python_kernel.py": "reports what the user's code raises, in its own process",
    "backends/validation/validator_worker.py": "a process without tasks, which answers in any case",
}


def module_name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def creates_task(node: ast.AST) -> bool:
    """Return whether a call creates a task outside of an ``asyncio.TaskGroup``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = ast.unparse(node.func.value)
    return node.func.attr in ("create_task", "ensure_future") and owner != "group"


def suppresses_all(node: ast.AST) -> bool:
    """Return whether a handler catches a cancellation, and does not raise it at its end."""
    return (
        isinstance(node, ast.ExceptHandler)
        and (node.type is None or "BaseException" in ast.unparse(node.type).split("."))
        and not isinstance(node.body[-1], ast.Raise)
    )


def test_tasks_are_started_by_their_owners() -> None:
    found = Counter(
        module_name(path)
        for path in modules_with("create_task", "ensure_future")
        if path.parts[len(PACKAGE.parts)] != "testing"
        for node in nodes(path)
        if creates_task(node)
    )
    assert found == {name: count for name, (count, _) in CREATES_TASKS.items()}


def test_handlers_of_all_exceptions_raise_them_again() -> None:
    """A handler that cleans up and raises is fine, so that a cancelled task ends as cancelled."""
    found = {
        module_name(path)
        for path in modules_with("except:", "BaseException")
        for node in nodes(path)
        if suppresses_all(node)
    }
    assert found == set(SUPPRESSES_ALL)
