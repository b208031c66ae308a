"""Every built-in sandbox passes the contract checks. So does the fake sandbox, as far as it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.sandbox.base import ExecutionResult, Sandbox
from antiphon.testing.sandbox import FakeSandbox
from antiphon.testing.sandbox_check import CHECKS, FILE_CHECKS, Check, check_sandbox

from .kubernetes.fake_cluster import fake_cluster
from .kubernetes.test_kubernetes import connect
from .real_sandboxes import sandbox

#: Checks that do not apply to pods. Code in a pod can change the shared files of this pod.
UNMET_BY_PODS = {"shared_files_are_read_only"}


@pytest.mark.e2e
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_bubblewrap_passes_the_check(check: Check) -> None:
    bubblewrap = await sandbox()
    try:
        await check(bubblewrap)
    finally:
        await bubblewrap.close()


@pytest.mark.e2e
@pytest.mark.parametrize("name", sorted(CHECKS.keys() - UNMET_BY_PODS))
async def test_kubernetes_passes_the_check(name: str, tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        await cluster.add_warm_pod()
        await cluster.add_warm_pod()
        pods = connect(cluster)
        try:
            await CHECKS[name](pods)
        finally:
            await pods.close()


async def test_fake_sandbox_passes_the_checks_of_files() -> None:
    await check_sandbox(FakeSandbox(echo), FILE_CHECKS)


async def test_sandbox_without_an_interpreter_fails_the_checks_of_code() -> None:
    fake: Sandbox = FakeSandbox(echo)
    for name in CHECKS.keys() - FILE_CHECKS.keys():
        if name == "cancelled_call_interrupts_its_code":  # it waits for code that does not end
            continue
        with pytest.raises(AssertionError):
            await CHECKS[name](fake)


def echo(code: str, files: dict[str, bytes]) -> ExecutionResult:
    return ExecutionResult(output=code, end_reason="done")
