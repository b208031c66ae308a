"""SDKs and agent frameworks: each program uses its client as its documentation says, and checks
what it gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import HERE, MODELS, TOOLS, Shell

PYTHON = sorted((HERE / "python").glob("use_*.py"))
NODE = sorted((HERE / "node").glob("use_*.mjs"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("program", PYTHON, ids=lambda path: path.stem)
def test_program_with_a_python_sdk_succeeds(shell: Shell, program: Path, model: str) -> None:
    shell.run(TOOLS / "python", "-W", "error::DeprecationWarning:__main__", program, MODEL=model)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("program", NODE, ids=lambda path: path.stem)
def test_program_with_a_node_sdk_succeeds(shell: Shell, program: Path, model: str) -> None:
    shell.run(TOOLS / "node", program, MODEL=model)


LLM_MODELS = """
- model_id: local
  model_name: {name}
  api_base: {url}
  responses: true
  supports_tools: true
  supports_schema: true
- model_id: local-chat
  model_name: {name}
  api_base: {url}
  supports_tools: true
  supports_schema: true
"""


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("model", ["local", "local-chat"])
def test_llm_command_line(shell: Shell, model: str, name: str) -> None:
    """The command line tool of that name."""
    folder = shell.home / "llm"
    folder.mkdir()
    models = LLM_MODELS.format(url=shell.server.url, name=name)
    (folder / "extra-openai-models.yaml").write_text(models)
    (folder / "tools.py").write_text("def get_weather(city: str) -> str:\n    return 'sunny'\n")
    llm = (TOOLS / "llm",)
    more = {"LLM_USER_PATH": str(folder)}
    request = ("-m", model)
    assert "Hello there!" in shell.run(*llm, *request, "hi", **more)
    assert "Hello there!" in shell.run(*llm, *request, "--no-stream", "-c", "and?", **more)
    city = shell.run(*llm, *request, "--schema", "name,country", "Name a city as JSON", **more)
    assert '"Rome"' in city
    tools = ("--functions", folder / "tools.py", "What is the weather in Rome?")
    assert "It is sunny in Rome." in shell.run(*llm, *request, *tools, **more)
