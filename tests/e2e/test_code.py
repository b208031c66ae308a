"""Code that the real model writes because it must, in a real sandbox, through the official client."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import NotFoundError, OpenAI

from tests.e2e.server import Server, serving
from tests.sandbox.boxes import sandbox

pytestmark = pytest.mark.model

FORCED: Any = {
    "model": "smollm2",
    "temperature": 0,
    "max_output_tokens": 60,
    "input": "Use Python to print the number 4.",
    "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
    "tool_choice": {"type": "code_interpreter"},
    "include": ["code_interpreter_call.outputs"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("xllamacpp")
    folder = tmp_path_factory.mktemp("code")
    with serving(folder, 'sandbox = "bubblewrap"\ncode_s = 5') as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def client(server: Server) -> OpenAI:
    await sandbox()  # or the test is skipped
    return OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60)


async def test_forced_code_is_written_run_and_streamed(client: OpenAI) -> None:
    events: Any = list(client.responses.create(**FORCED, stream=True))
    seen, final = [event.type for event in events], events[-1].response
    call = next(item for item in final.output if item.type == "code_interpreter_call")
    assert call.code and call.container_id.startswith("cntr_")
    assert call.status in ("completed", "failed", "incomplete")
    assert "response.code_interpreter_call_code.delta" in seen
    assert "response.code_interpreter_call.interpreting" in seen or call.status == "incomplete"
    assert final.status in ("completed", "incomplete")


async def test_containers_over_the_official_client(client: OpenAI) -> None:
    uploaded = client.files.create(file=("n.csv", b"1,2"), purpose="user_data")
    made = client.containers.create(name="mine", file_ids=[uploaded.id])
    assert made.status == "active" and made.memory_limit == "1g"
    assert made.id in [each.id for each in client.containers.list()]
    assert client.containers.retrieve(made.id).name == "mine"
    added = client.containers.files.create(made.id, file=("b.txt", b"two"))
    paths = {each.path for each in client.containers.files.list(made.id)}
    assert paths == {"/mnt/data/n.csv", "/mnt/data/b.txt"}
    assert client.containers.files.retrieve(added.id, container_id=made.id).bytes == 3
    content = client.containers.files.content.retrieve(added.id, container_id=made.id)
    assert content.read() == b"two"
    client.containers.files.delete(added.id, container_id=made.id)
    client.containers.delete(made.id)
    with pytest.raises(NotFoundError):
        client.containers.retrieve(made.id)


def test_nothing_is_left_when_the_server_ends(tmp_path: Path) -> None:
    with serving(tmp_path, 'sandbox = "bubblewrap"') as server:
        server.kill()
    left = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and b"antiphon.sandbox.agent" in (entry / "cmdline").read_bytes()
            ):
                left.append((entry / "status").read_text().split("PPid:\t")[1].split()[0])
        except OSError:
            continue
    assert str(server.process.pid) not in left
