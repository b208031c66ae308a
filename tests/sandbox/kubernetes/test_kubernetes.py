"""Boxes that are pods of a cluster: what code sees, and how claims begin and end."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from antiphon.errors import SetupError, ToolError
from antiphon.sandbox.base import Limits
from antiphon.sandbox.guest import agent
from antiphon.sandbox.kubernetes.api import KubernetesApi
from antiphon.sandbox.kubernetes.box import PodBox
from antiphon.sandbox.kubernetes.sandbox import KubernetesSandbox, PodSettings

from .fake_cluster import POOL, FakeCluster, fake_cluster

pytestmark = pytest.mark.e2e

SMALL = Limits(memory_bytes=256 << 20, disk_bytes=8 << 20, processes=32)
WAIT_S = 60


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with fake_cluster(tmp_path) as running:
        yield running


def connect(cluster: FakeCluster, pool: str = POOL) -> KubernetesSandbox:
    numbers = itertools.count(1)
    return KubernetesSandbox(
        KubernetesApi.open(cluster.url, cluster.credentials, None),
        aiohttp.ClientSession(),
        PodSettings(pool=pool, owner="server-1", router=cluster.url),
        clock=lambda: 1_000_000_000,
        ids=lambda kind: f"{kind}_{next(numbers)}",
    )


@pytest.fixture
async def sandbox(cluster: FakeCluster) -> AsyncIterator[KubernetesSandbox]:
    opened = connect(cluster)
    await opened.check()
    yield opened
    await opened.close()


@pytest.fixture
async def box(sandbox: KubernetesSandbox) -> PodBox:
    return await sandbox.open(SMALL)


async def run(box: PodBox, code: str, timeout_s: float = WAIT_S, most: int = 2000) -> str:
    return (await box.python(code, timeout_s=timeout_s, max_chars=most)).output


async def test_code_and_commands_run_with_their_limits(box: PodBox) -> None:
    assert box.version.startswith("3.")
    assert await run(box, "x = 20\nx + 1") == "21\n"
    assert await run(box, "x * 2") == "40\n", "variables persist"
    failed = await box.python("1 / 0", timeout_s=WAIT_S, max_chars=2000)
    assert failed.end_reason == "raised" and "division by zero" in failed.output
    late = await box.python("while True: pass", timeout_s=0.5, max_chars=2000)
    assert late.end_reason == "timeout"
    cut = await run(box, "print('a' * 5000 + 'z' * 5000)", most=100)
    assert cut.startswith("a" * 50 + "\n[…") and cut.endswith("z\n")
    pieces: list[tuple[str, str]] = []
    command = "echo out; echo err >&2; pwd; exit 3"
    result = await box.command(
        command, timeout_s=WAIT_S, max_chars=99, on_output=lambda *each: pieces.append(each)
    )
    assert (result.output, result.stderr, result.exit_code) == ("out\n/mnt/data\n", "err\n", 3)
    assert pieces == [("out\n/mnt/data\n", "err\n")]
    slow = await box.command("sleep 100", timeout_s=0.5, max_chars=99)
    assert slow.end_reason == "timeout"
    endless = await box.command("yes", timeout_s=WAIT_S, max_chars=100)
    assert endless.end_reason == "output" and len(endless.output) < 300
    big = await box.python("b'x' * (1 << 30)", timeout_s=WAIT_S, max_chars=2000)
    assert "MemoryError" in big.output


async def test_interpreter_that_exits_is_reported_as_died(box: PodBox) -> None:
    died = await box.python("import os; os._exit(3)", timeout_s=WAIT_S, max_chars=99)
    assert (died.end_reason, died.variables_kept) == ("died", False)
    assert await run(box, "1") == "1\n"


async def test_cancelled_call_interrupts_its_code(cluster: FakeCluster, box: PodBox) -> None:
    await run(box, "x = 5")
    code = "open('started', 'w').close()\nimport time\nwhile True: time.sleep(0.01)"
    running = asyncio.create_task(box.python(code, timeout_s=WAIT_S, max_chars=99))
    async with asyncio.timeout(WAIT_S):
        while not [*cluster.folder.glob("*/data/started")]:
            await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert box.is_alive and await run(box, "x") == "5\n"


async def test_files_and_skills(box: PodBox) -> None:
    await box.write('in/é "b%.txt', b"\x00content")
    assert await run(box, "open('in/é \"b%.txt', 'rb').read()") == "b'\\x00content'\n"
    assert await box.read('in/é "b%.txt') == b"\x00content"
    await run(box, "import os\nos.symlink('/etc/passwd', 'link')")
    assert await box.read("link") is None and await box.read("none") is None
    assert await box.read("../.antiphon.zip") is None
    for name in ("../x", "a\nb"):
        with pytest.raises(ToolError, match="could not be written"):
            await box.write(name, b"")
    (entry,) = await box.list_files()
    assert (entry.path, entry.size) == ('in/é "b%.txt', 8)
    assert await box.remove('in/é "b%.txt') and not await box.remove('in/é "b%.txt')
    with pytest.raises(ToolError, match="could not be written"):
        await box.write("big", bytes(9 << 20))
    await box.share("skill", {"run.sh": b"echo hi", "d/text": b"t"}, ["run.sh"])
    shown = await box.command("sh /mnt/skills/skill/run.sh", timeout_s=WAIT_S, max_chars=99)
    assert shown.output == "hi\n"
    with pytest.raises(ToolError, match="leads out"):
        await box.share("skill", {"../x": b""}, [])


async def test_claims_name_their_owner_and_end_with_their_boxes(
    cluster: FakeCluster, sandbox: KubernetesSandbox
) -> None:
    first, second = [await sandbox.open(SMALL) for _ in range(2)]
    assert list(cluster.claims) == ["antiphon-1", "antiphon-2"]
    claim = cluster.claims["antiphon-1"]
    assert claim["metadata"]["labels"]["app.kubernetes.io/instance"] == "server-1"
    assert claim["spec"]["lifecycle"] == {
        "shutdownTime": "2001-09-09T01:56:40Z",
        "shutdownPolicy": "Delete",
    }
    await first.close()
    await first.close()
    assert list(cluster.claims) == ["antiphon-2"]
    with pytest.raises(ToolError, match="has ended"):
        await first.list_files()
    await sandbox.close()
    assert not cluster.claims and not second.is_alive


async def test_claims_are_extended_while_their_boxes_live(
    cluster: FakeCluster, sandbox: KubernetesSandbox
) -> None:
    box = await sandbox.open(SMALL)
    cluster.claims["antiphon-1"]["spec"]["lifecycle"]["shutdownTime"] = "before"
    await sandbox.renew()
    assert cluster.claims["antiphon-1"]["spec"]["lifecycle"]["shutdownTime"].startswith("2001")
    await cluster.lose("antiphon-1")
    await sandbox.renew()
    assert not box.is_alive and not cluster.claims


@pytest.mark.parametrize("deleted", [False, True])
async def test_box_whose_pod_is_lost_has_ended(
    cluster: FakeCluster, box: PodBox, deleted: bool
) -> None:
    await (cluster.delete if deleted else cluster.lose)("antiphon-1")
    with pytest.raises(ToolError, match="has ended"):
        await run(box, "1")
    assert not box.is_alive and not cluster.claims


async def test_claim_waits_for_its_pod(cluster: FakeCluster, sandbox: KubernetesSandbox) -> None:
    cluster.holds_claims = True
    opening = asyncio.create_task(sandbox.open(SMALL))
    async with asyncio.timeout(WAIT_S):
        while not cluster.claims:
            await asyncio.sleep(0.01)
    await cluster.make_ready("antiphon-1")
    assert await run(await opening, "1") == "1\n"


@pytest.mark.parametrize("deleted", [False, True])
async def test_claim_that_gets_no_pod_is_deleted(
    cluster: FakeCluster, sandbox: KubernetesSandbox, deleted: bool
) -> None:
    cluster.failure = "PodFailed"
    cluster.holds_claims = deleted
    opening = asyncio.create_task(sandbox.open(SMALL))
    if deleted:
        async with asyncio.timeout(WAIT_S):
            while not cluster.claims:
                await asyncio.sleep(0.01)
        await cluster.delete("antiphon-1")
    with pytest.raises(ToolError, match="No pod is available"):
        await opening
    assert not cluster.claims


async def test_code_in_a_pod_that_alters_the_agent_ends_the_box(box: PodBox) -> None:
    await run(box, "open('/mnt/.antiphon.zip', 'w').write('no zip')")
    with pytest.raises(ToolError, match="has ended"):
        await run(box, "1")
    assert not box.is_alive


@pytest.mark.kubernetes
@pytest.mark.skipif("KUBERNETES_TEST" not in os.environ, reason="no cluster")
async def test_pod_of_a_real_cluster() -> None:
    """KUBERNETES_TEST: API URL, folder of credentials, pool and router, separated by spaces."""
    url, credentials, pool, router = os.environ["KUBERNETES_TEST"].split()
    sandbox = KubernetesSandbox(
        KubernetesApi.open(url, Path(credentials), None),
        aiohttp.ClientSession(),
        PodSettings(pool=pool, owner="test", router=router),
        clock=time.time,
        ids=lambda kind: f"{kind}-{os.urandom(8).hex()}",
    )
    try:
        await sandbox.check()
        box = await sandbox.open(SMALL)
        await run(box, "x = 20")
        assert await run(box, "x + 1") == "21\n"
        late = await box.python("while True: pass", timeout_s=1, max_chars=2000)
        assert late.end_reason == "timeout"
        await box.write("a.txt", b"content")
        assert [entry.path for entry in await box.list_files()] == ["a.txt"]
        assert await box.read("a.txt") == b"content"
        network = "import socket\nsocket.create_connection(('kubernetes.default.svc', 443), 3)"
        assert "Error" in await run(box, network)
        await sandbox.renew()
        assert box.is_alive
    finally:
        await sandbox.close()


def test_end_of_a_child_is_seen_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(pid: int) -> int:
        raise OSError("not implemented")

    monkeypatch.setattr(os, "pidfd_open", fail)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        ended = agent.open_exit_fd(child.pid)
        assert not select.select([ended], [], [], 0)[0]
        assert child.stdin is not None
        child.stdin.close()
        assert select.select([ended], [], [], WAIT_S)[0]
    os.close(ended)


async def test_missing_pool_and_refused_token_are_errors_at_start(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    absent = connect(cluster, "other")
    with pytest.raises(SetupError, match="no SandboxWarmPool 'other' in the namespace 'boxes'"):
        await absent.check()
    (cluster.folder / "token").write_text("wrong")
    with pytest.raises(SetupError, match="cannot be used: Unauthorized"):
        await absent.check()
    await absent.close()
    with pytest.raises(SetupError, match=r"the service account in .* cannot be read"):
        KubernetesApi.open(cluster.url, tmp_path / "none", None)
