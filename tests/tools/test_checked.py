"""What every tool must do, over those that run code, in real boxes."""

from __future__ import annotations

from antiphon.testing.tool_check import Trial, check_tool
from antiphon.tools.code_interpreter import CodeInterpreter
from antiphon.tools.shell import Shell
from antiphon.wire import tools as tl
from tests.conformance.boxes import containers
from tests.sandbox.boxes import SMALL, sandbox

AUTO = {"type": "container_auto"}


async def test_code_interpreter() -> None:
    async with containers(await sandbox(SMALL), disk_bytes=SMALL.disk_bytes) as held:
        await check_tool(
            CodeInterpreter(held),
            Trial(
                tool=tl.CodeInterpreter(container={"type": "auto"}),
                works=("python", "print(6 * 7)"),
                fails=("python", "import os; os._exit(1)"),
                hangs=("python", "while True: pass"),
                refused=(
                    tl.CodeInterpreter(container={"type": "manual"}),
                    tl.CodeInterpreter(container={"type": "auto", "skills": [{}]}),
                ),
            ),
        )


async def test_a_shell_here() -> None:
    async with containers(await sandbox(SMALL), disk_bytes=SMALL.disk_bytes) as held:
        await check_tool(
            Shell(held),
            Trial(
                tool=tl.Shell(environment=AUTO),
                works=("shell", '{"commands": ["echo 1", "exit 3"]}'),
                fails=("shell", '{"commands": []}'),
                hangs=("shell", '{"commands": ["sleep 600"]}'),
                refused=(
                    tl.Shell(environment={**AUTO, "memory_limit": "64g"}),
                    tl.Shell(environment={**AUTO, "skills": [{"type": "x"}]}),
                ),
            ),
        )
