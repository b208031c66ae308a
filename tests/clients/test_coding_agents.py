"""Coding agents do a whole task: a file is made, corrected and run. The model's words are played,
in its own format; all else is real."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.clients.conftest import HERE, MODELS, Shell

CODEX = """
model = "{model}"
model_provider = "antiphon"
approval_policy = "never"
sandbox_mode = "danger-full-access"
{more}
[model_providers.antiphon]
name = "{name}"
base_url = "{url}"
wire_api = "responses"
env_key = "ANTIPHON_API_KEY"
supports_websockets = {websockets}
"""
CALC = """
[mcp_servers.calc]
command = "{python}"
args = ["{program}"]
cwd = "{work}"
default_tools_approval_mode = "approve"
"""
OPENCODE = {
    "model": "antiphon/MODEL",
    "small_model": "antiphon/MODEL",
    "permission": {"*": "allow"},
    "autoupdate": False,
    "share": "disabled",
    "provider": {
        "antiphon": {
            "npm": "@ai-sdk/openai",
            "name": "Antiphon",
            "options": {"baseURL": "URL", "apiKey": "none"},
            "models": {"MODEL": {"name": "tiny", "limit": {"context": 128000, "output": 8000}}},
        }
    },
}
PI = {
    "providers": {
        "antiphon": {
            "baseUrl": "URL",
            "api": "openai-responses",
            "apiKey": "none",
            "models": [{"id": "MODEL", "contextWindow": 128000, "maxTokens": 8000}],
        }
    }
}


def done(shell: Shell, text: str) -> None:
    """The task is."""
    assert "Done: it says hello." in text
    assert (shell.work / "greet.py").read_text() == 'print("hello")\n'
    assert (shell.work / "said.txt").read_text() == "hello\n"


def codex(
    shell: Shell,
    task: str,
    *,
    model: str = "tiny",
    websockets: bool = False,
    name: str = "Antiphon",
    more: str = "",
    servers: str = "",
) -> str:
    folder = shell.home / ".codex"
    folder.mkdir()
    settings = CODEX.format(
        model=model,
        url=shell.server.url,
        name=name,
        more=more,
        websockets=str(websockets).lower(),
    )
    (folder / "config.toml").write_text(settings + servers)
    return shell.run("codex", "exec", "--skip-git-repo-check", task, ANTIPHON_API_KEY="none")


def connections(shell: Shell) -> int:
    """WebSockets that were opened and are over."""
    found = re.findall(
        r'requests_total\{method="WEBSOCKET".*\} (\d+)', shell.server.get("/metrics")
    )
    return sum(map(int, found))


@pytest.mark.parametrize("websockets", [False, True], ids=["http", "websocket"])
@pytest.mark.parametrize(
    ("model", "task"),
    [
        ("tiny", "Task for codex with commands"),
        ("gpt-5.5", "Task for codex with patches"),
        ("gpt-5.6-sol", "Task for codex with code"),
    ],
)
def test_codex_finishes_a_task_with_each_style_of_tools(
    shell: Shell, model: str, task: str, websockets: bool
) -> None:
    """It has three styles of tools, which it chooses by the name of the model."""
    before = connections(shell)
    done(shell, codex(shell, task, model=model, websockets=websockets))
    assert (connections(shell) > before) == websockets


def test_codex_with_its_own_provider(shell: Shell) -> None:
    """That of OpenAI, at another address: it asks over a WebSocket at once."""
    (shell.home / ".codex").mkdir()
    (shell.home / ".codex" / "config.toml").write_text(
        f'openai_base_url = "{shell.server.url}"\nmodel = "gpt-5.5"\n'
        'approval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
    )
    before = connections(shell)
    task = ("codex", "exec", "--skip-git-repo-check", "Task for codex with patches")
    done(shell, shell.run(*task, CODEX_API_KEY="none"))
    assert connections(shell) > before


def test_codex_reads_the_catalog_of_models(shell: Shell) -> None:
    """From which a model of any name gets the patch tool."""
    more = f'model_catalog_url = "{shell.server.url}/models"\n'
    output = codex(shell, "Task for codex with patches", servers=more)
    done(shell, output)
    assert "metadata" not in output


def test_codex_calls_tools_of_a_server(shell: Shell) -> None:
    """Their calls must come back in the server's namespace."""
    program = HERE / "calc.py"
    servers = CALC.format(python=sys.executable, program=program, work=shell.work)
    output = codex(shell, "Task for codex with a server of tools", servers=servers)
    assert "Done: it is 42." in output
    assert (shell.work / "added.txt").read_text() == "42"


def test_codex_compacts_a_long_conversation(shell: Shell) -> None:
    """By the usage we report; the summary is an answer like any other."""
    more = "model_context_window = 60000\nmodel_auto_compact_token_limit = 45000\n"
    output = codex(shell, "Task for codex that is long " + "word " * 4000, more=more)
    assert "Done: after a summary." in output


def test_launched_codex_lets_the_server_compact(shell: Shell) -> None:
    """It sends a `compaction_trigger`, instead of a prompt of its own."""
    limits = ("model_context_window=60000", "model_auto_compact_token_limit=30000")
    options = [word for limit in limits for word in ("-c", limit)]
    task = "Task for codex that is long " + "word " * 4000
    command = (sys.executable, "-m", "antiphon", "launch", "--url", shell.server.url, "codex")
    sandbox = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    more = {"PYTHONPATH": str(HERE.parents[1])}
    output = shell.run(*command, "exec", *sandbox, *options, task, **more)
    assert "Done: after the server's summary." in output


@pytest.mark.parametrize("websockets", [False, True], ids=["http", "websocket"])
@pytest.mark.parametrize(
    ("model", "more"),
    [("tiny", "[features]\nmulti_agent_v2 = true\n"), ("gpt-6-astra", "")],
)
def test_codex_starts_a_sub_agent(shell: Shell, model: str, more: str, websockets: bool) -> None:
    """It has them if a setting or the name of the model says so."""
    before = connections(shell)
    task = f"Task for codex with a helper of {model}"
    output = codex(shell, task, model=model, more=more, websockets=websockets, name="OpenAI")
    assert "Done: the helper wrote it." in output
    assert (shell.work / "helped.txt").read_text() == "hello\n"
    again = ("codex", "exec", "--skip-git-repo-check", "resume", "--last", "And now again")
    assert "Still here." in shell.run(*again, ANTIPHON_API_KEY="none")
    # After a refusal, the client opens another connection.
    assert connections(shell) - before == (3 if websockets else 0)


@pytest.mark.parametrize(
    ("model", "task"), [("tiny", "Task for opencode"), ("gpt-6-astra", "Patches for opencode")]
)
def test_opencode_finishes_a_task(shell: Shell, model: str, task: str) -> None:
    """It chooses its tools for files by the name of the model."""
    folder = shell.home / ".config" / "opencode"
    folder.mkdir(parents=True)
    settings = json.dumps(OPENCODE).replace("URL", shell.server.url).replace("MODEL", model)
    (folder / "opencode.json").write_text(settings)
    shell.run("git", "init", "--quiet", ".")
    done(shell, shell.run("opencode", "run", task))


@pytest.mark.parametrize("model", MODELS)
def test_pi_finishes_a_task(shell: Shell, model: str) -> None:
    folder = shell.home / ".pi" / "agent"
    folder.mkdir(parents=True)
    settings = json.dumps(PI).replace("URL", shell.server.url).replace("MODEL", model)
    (folder / "models.json").write_text(settings)
    done(shell, shell.run("pi", "--provider", "antiphon", "--model", model, "-p", "Task for pi"))


@pytest.mark.parametrize("model", MODELS)
def test_qwen_code_finishes_a_task_over_the_messages_api(shell: Shell, model: str) -> None:
    more = {"ANTHROPIC_BASE_URL": shell.server.url.removesuffix("/v1"), "ANTHROPIC_MODEL": model}
    command = ("qwen", "--auth-type", "anthropic", "--approval-mode", "yolo", "Task for qwen")
    done(
        shell, shell.run(*command, ANTHROPIC_API_KEY="none", QWEN_TELEMETRY_ENABLED="false", **more)
    )


@pytest.mark.parametrize(
    ("client", "arguments"),
    [
        (
            "codex",
            (
                *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
                "Task for codex with patches",
            ),
        ),
        ("opencode", ("run", "Task for opencode")),
        ("pi", ("-p", "Task for pi")),
        (
            "claude",
            ("-p", "Task for claude", "--permission-mode", "acceptEdits", "--allowedTools", "Bash"),
        ),
    ],
    ids=["codex", "opencode", "pi", "claude"],
)
def test_launched_client_does_a_task_and_leaves_its_home_alone(
    shell: Shell, client: str, arguments: tuple[str, ...]
) -> None:
    shell.run("git", "init", "--quiet", ".")
    command = (sys.executable, "-m", "antiphon", "launch", "--url", shell.server.url, client)
    done(shell, shell.run(*command, *arguments, PYTHONPATH=str(HERE.parents[1])))
    written = {
        path.relative_to(shell.home).as_posix()
        for path in shell.home.rglob("*")
        if path.is_file() and not path.is_relative_to(shell.work)
    }
    state = ".local/state/antiphon"
    others = {each for each in written if not each.startswith(f"{state}/launch/{client}/")}
    assert others == {f"{state}/last-server"}


UNASKED = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


@pytest.mark.parametrize(
    ("client", "ask", "resume"),
    [
        ("codex", ("exec", *UNASKED), ("exec", *UNASKED, "resume", "--last")),
        ("opencode", ("run",), ("run", "--continue")),
        ("pi", ("-p",), ("-c", "-p")),
        ("claude", ("-p",), ("--continue", "-p")),
    ],
    ids=["codex", "opencode", "pi", "claude"],
)
def test_launched_client_resumes_its_session_and_leaves_no_process(
    shell: Shell, client: str, ask: tuple[str, ...], resume: tuple[str, ...]
) -> None:
    shell.run("git", "init", "--quiet", ".")
    command = (sys.executable, "-m", "antiphon", "launch", "--url", shell.server.url, client)
    mark = f"/{client}-of-this-test"
    more = {"PYTHONPATH": str(HERE.parents[1]), "LAUNCH_MARK": mark}
    assert "Forty-two." in shell.run(*command, *ask, "Think first", **more)
    # A new session would get the answer to anything else, "Hello there!".
    assert "Forty-two." in shell.run(*command, *resume, "hi", **more)
    assert not any(mark in environment for environment in environments())


def environments() -> Iterator[str]:
    """The environments of all processes."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or belongs to another user
            yield path.read_bytes().decode(errors="replace")
