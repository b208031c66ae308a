"""Code that a model writes because it must, in a real sandbox, through the official client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import NotFoundError, OpenAI

from antiphon.testing.models import smollm2
from tests.e2e.server import Server, serving
from tests.sandbox.boxes import sandbox

pytestmark = pytest.mark.model

ASKED: Any = {
    "temperature": 0,
    "max_output_tokens": 200,
    "parallel_tool_calls": False,
    "input": "What are the first squares?",
    "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
    "tool_choice": {"type": "code_interpreter"},
    "include": ["code_interpreter_call.outputs"],
    "stream": True,
}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
CODE = f"""import base64
open('/mnt/data/dot.png', 'wb').write(base64.b64decode('{PNG}'))
[n * n for n in range(5)]"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("xllamacpp")
    folder = tmp_path_factory.mktemp("code")
    call = json.dumps({"name": "python", "arguments": {"input": CODE}})
    turns = [f"<tool_call>\n{call}\n</tool_call>", "See sandbox:/mnt/data/dot.png."]
    (folder / "scenes.toml").write_text(
        f'[[scenes]]\nwhen = "first squares"\nturns = {json.dumps(turns)}\n'
    )
    model = f'[models.replay]\nengine = "replay"\nsource = "{folder}/scenes.toml"\n'
    model += f'[models.smollm2]\nsource = "{smollm2()}"\nthreads = 1\ncontext_size = 2048\n'
    with serving(folder, 'sandbox = "bubblewrap"\ncode_s = 5', model=model) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> OpenAI:
    await sandbox()  # or the test is skipped
    return OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60)


async def test_what_a_real_model_must_write_is_run(client: OpenAI) -> None:
    """Whatever so small a model takes for Python."""
    events: Any = list(client.responses.create(model="smollm2", **ASKED))
    final = events[-1].response
    call = final.output[0]
    assert call.type == "code_interpreter_call" and call.container_id.startswith("cntr_")
    assert call.status == "completed" and final.output[-1].type == "message"


async def test_code_runs_and_its_file_is_cited(client: OpenAI) -> None:
    events: Any = list(
        client.responses.create(model="replay", **{**ASKED, "max_output_tokens": 2000})
    )
    call, message = events[-1].response.output
    assert call.code == CODE and call.status == "completed"
    assert call.outputs[0].logs == "[0, 1, 4, 9, 16]\n"
    written = [e.delta for e in events if e.type == "response.code_interpreter_call_code.delta"]
    assert "".join(written) == CODE and len(written) > 1
    (cited,) = message.content[0].annotations
    assert cited.type == "container_file_citation" and cited.filename == "dot.png"
    content = client.containers.files.content.retrieve(
        cited.file_id, container_id=cited.container_id
    )
    assert content.read() == base64.b64decode(PNG)


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
