"""Code that a model writes because it must, in a real sandbox, through the official client."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from openai import NotFoundError, OpenAI

from tests.conformance.test_tool_search import tool_call
from tests.e2e.server import serving
from tests.harness import ServerSetup, scene
from tests.real.embedded_model import smollm2
from tests.sandbox.real_sandboxes import sandbox

pytestmark = pytest.mark.e2e

REQUEST: Any = {
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


MANIFEST = b"---\nname: dice\ndescription: Rolls dice.\n---\nRun sh roll.sh.\n"
COMMANDS = (
    ["cat /mnt/skills/dice/SKILL.md"],
    ["sh /mnt/skills/dice/roll.sh", "echo x > /mnt/skills/dice/roll.sh"],
)


@pytest.fixture(scope="module")
def server_setup(server_folder: Path) -> ServerSetup:
    pytest.importorskip("xllamacpp")
    turns = [tool_call("python", {"input": CODE}), "See sandbox:/mnt/data/dot.png."]
    rolls = [*(tool_call("shell", {"commands": commands}) for commands in COMMANDS), "It is a 4."]
    scenes = scene("first squares", *turns) + scene("Roll a die", *rolls)
    (server_folder / "scenes.toml").write_text(scenes)
    model = '[models.replay]\nengine = "replay"\nsource = "scenes.toml"\n'
    model += f'[models.smollm2]\nsource = "{smollm2()}"\nthreads = 1\ncontext_size = 2048\n'
    return ServerSetup(
        settings='sandbox.kind = "bubblewrap"\nsandbox.code_timeout_s = 5', model=model
    )


@pytest.fixture(autouse=True)
async def _sandboxes_work() -> None:
    await sandbox()  # or the test is skipped


async def test_code_of_the_real_model_runs(client: OpenAI) -> None:
    """The code is whatever so small a model takes for Python."""
    events: Any = list(client.responses.create(model="smollm2", **REQUEST))
    final = events[-1].response
    call = final.output[0]
    assert call.type == "code_interpreter_call" and call.container_id.startswith("cntr_")
    assert call.status == "completed" and final.output[-1].type == "message"


async def test_file_written_by_code_is_cited(client: OpenAI) -> None:
    events: Any = list(
        client.responses.create(model="replay", **{**REQUEST, "max_output_tokens": 2000})
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


async def test_official_client_manages_containers(client: OpenAI) -> None:
    uploaded = client.files.create(file=("n.csv", b"1,2"), purpose="user_data")
    created = client.containers.create(name="mine", file_ids=[uploaded.id])
    assert created.status == "active" and created.memory_limit == "1g"
    assert created.id in [each.id for each in client.containers.list()]
    assert client.containers.retrieve(created.id).name == "mine"
    added = client.containers.files.create(created.id, file=("b.txt", b"two"))
    paths = {each.path for each in client.containers.files.list(created.id)}
    assert paths == {"/mnt/data/n.csv", "/mnt/data/b.txt"}
    assert client.containers.files.retrieve(added.id, container_id=created.id).bytes == 3
    content = client.containers.files.content.retrieve(added.id, container_id=created.id)
    assert content.read() == b"two"
    client.containers.files.delete(added.id, container_id=created.id)
    client.containers.delete(created.id)
    with pytest.raises(NotFoundError):
        client.containers.retrieve(created.id)


async def test_official_client_manages_skills(client: OpenAI) -> None:
    files = [("dice/SKILL.md", MANIFEST), ("dice/roll.sh", b"echo 4")]
    skill = client.skills.create(files=files)
    assert (skill.name, skill.description, skill.default_version) == ("dice", "Rolls dice.", "1")
    version = client.skills.versions.create(
        skill.id, files=[("SKILL.md", MANIFEST), ("roll.sh", b"echo 5")]
    )
    assert (version.version, client.skills.retrieve(skill.id).latest_version) == ("2", "2")
    assert client.skills.update(skill.id, default_version="2").default_version == "2"
    with ZipFile(BytesIO(client.skills.content.retrieve(skill.id).read())) as bundle:
        assert bundle.read("dice/roll.sh") == b"echo 5"
    tool: Any = {
        "type": "shell",
        "environment": {
            "type": "container_auto",
            "skills": [{"type": "skill_reference", "skill_id": skill.id, "version": "1"}],
        },
    }
    response = client.responses.create(model="replay", input="Roll a die.", tools=[tool])
    _, manifest, _, rolled, message = response.output
    assert manifest.type == rolled.type == "shell_call_output"
    assert manifest.output[0].stdout.encode() == MANIFEST
    assert rolled.output[0].stdout == "4\n"
    assert "Read-only file system" in rolled.output[1].stderr
    assert response.output_text == "It is a 4." and message.type == "message"
    zipped = client.skills.versions.content.retrieve("1", skill_id=skill.id).read()
    again = client.skills.create(files=("dice.zip", zipped))
    assert [each.id for each in client.skills.list()] == [again.id, skill.id]
    assert [v.version for v in client.skills.versions.list(skill.id)] == ["2", "1"]
    assert client.skills.versions.delete("1", skill_id=skill.id).version == "1"
    assert client.skills.delete(skill.id).deleted
    with pytest.raises(NotFoundError):
        client.skills.versions.retrieve("2", skill_id=skill.id)


def test_server_leaves_no_processes_or_folders(tmp_path: Path) -> None:
    with serving(tmp_path, 'sandbox.kind = "bubblewrap"') as server:
        server.kill()
    left = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and b"antiphon.sandbox.guest.agent" in (entry / "cmdline").read_bytes()
            ):
                left.append((entry / "status").read_text().split("PPid:\t")[1].split()[0])
        except OSError:
            continue
    assert str(server.process.pid) not in left
