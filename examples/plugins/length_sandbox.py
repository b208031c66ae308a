"""A sandbox that runs no code: ``sandbox.kind = "length"``. The result of code is its length."""

from typing import Any

from antiphon.sandbox.base import ExecutionResult, Sandbox
from antiphon.testing.sandbox import FakeSandbox


def run(code: str, files: dict[str, bytes]) -> ExecutionResult:
    """Return the result of code or of a command. ``files`` are the files of the box."""
    return ExecutionResult(output=f"{len(code)} characters\n", end_reason="done", exit_code=0)


async def open_sandbox(settings: Any) -> Sandbox:
    """Open the sandbox. A real sandbox starts a machine, a container or a pod for each box."""
    return FakeSandbox(run)
