"""Tools that clients run by the names of the API, and the shell that may also run here."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.store.base import Store
from antiphon.tools.client import CLIENT_TOOLS
from antiphon.tools.shell import Shell
from tests.conformance.boxes import containers, with_code
from tests.conformance.conftest import Serve
from tests.conformance.served import Ask, engine, local
from tests.conformance.test_tool_search import called, prompts
from tests.sandbox.boxes import SMALL, sandbox

CLIENTS = {"providers": {**CLIENT_TOOLS, "shell": Shell(None)}}
HERE = {"type": "shell", "environment": {"type": "container_auto"}}

#: The tool, what the model writes, the call on the wire, what the client brings, what is told.
CALLS: list[Any] = [
    (
        {"type": "local_shell"},
        {"command": ["ls", "-a"], "timeout_ms": 500, "working_directory": "/x"},
        {
            "type": "local_shell_call",
            "action": {
                "type": "exec",
                "command": ["ls", "-a"],
                "env": {},
                "timeout_ms": 500,
                "working_directory": "/x",
            },
        },
        {"type": "local_shell_call_output", "output": "a.txt"},
        "a.txt",
    ),
    (
        {"type": "local_shell"},
        {"command": "ls | wc"},
        {
            "type": "local_shell_call",
            "action": {"type": "exec", "command": ["bash", "-lc", "ls | wc"], "env": {}},
        },
        {"type": "local_shell_call_output", "output": "one line"},
        "one line",
    ),
    (
        {"type": "shell"},
        {"commands": ["ls", "pwd"], "timeout_ms": 1000},
        {
            "type": "shell_call",
            "action": {"commands": ["ls", "pwd"], "timeout_ms": 1000, "max_output_length": None},
            "environment": {"type": "local"},
        },
        {
            "type": "shell_call_output",
            "output": [
                {"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
            ],
        },
        "a.txt",
    ),
    (
        {"type": "apply_patch"},
        {"type": "create_file", "path": "a.py", "diff": "+x = 1"},
        {
            "type": "apply_patch_call",
            "operation": {"type": "create_file", "path": "a.py", "diff": "+x = 1"},
        },
        {"type": "apply_patch_call_output", "status": "failed", "output": "no such folder"},
        "no such folder",
    ),
    (
        {"type": "computer"},
        {"action": {"type": "click", "x": 1, "y": 2, "button": "left"}},
        {
            "type": "computer_call",
            "actions": [{"type": "click", "x": 1, "y": 2, "button": "left"}],
            "pending_safety_checks": [],
        },
        None,
        "",
    ),
]


@pytest.mark.requirement("API-CLIENT-TOOLS")
@pytest.mark.parametrize(("tool", "written", "item", "output", "told"), CALLS)
async def test_the_client_runs_it_and_the_model_is_told(
    serve: Serve, ask: Ask, tool: Any, written: Any, item: Any, output: Any, told: str
) -> None:
    name = "local_shell" if tool["type"] == "local_shell" else tool["type"]
    server = serve(local(engine([called(name, written), "So it is."])), **CLIENTS)
    answer = await ask(server, tools=[tool])
    (made,) = answer.output
    assert {key: made[key] for key in item} == item
    assert made["status"] == "completed" and answer.ended["status"] == "completed"
    assert f'"{name}"' in prompts(server)[0]
    if output is None or not answer.ended["store"]:
        return
    second = await ask(
        server,
        tools=[tool],
        previous_response_id=answer.ended["id"],
        input=[{**output, "call_id": made["call_id"]}],
    )
    assert second.text == "So it is." and told in prompts(server)[1]


async def test_its_commands_are_told_one_by_one(serve: Serve, ask: Ask) -> None:
    server = serve(local(engine([called("shell", {"commands": ["ls", "pwd"]})])), **CLIENTS)
    answer = await ask(server, tools=[{"type": "shell"}])
    steps = [
        (e["type"].removeprefix("response.shell_call_command."), e["command_index"])
        for e in answer.events or ()
        if "shell_call_command" in e["type"]
    ]
    if answer.events:
        assert steps == [(step, at) for at in (0, 1) for step in ("added", "delta", "done")]


@pytest.mark.parametrize("tool", sorted(CLIENT_TOOLS))
@pytest.mark.parametrize("written", ["", "{", "[1]", '"ls"', '{"commands": 3}', "null"])
def test_whatever_is_written_makes_an_item(tool: str, written: str) -> None:
    row = CLIENT_TOOLS[tool]._row
    fields = row.read(written)
    assert fields.keys() <= {"action", "actions", "operation"}
    assert all(step.name.startswith("command.") for step in row.steps(fields))


async def test_it_can_be_forced(serve: Serve, wait: Ask) -> None:
    played = engine([called("apply_patch", {"type": "delete_file", "path": "a"})])
    answer = await wait(
        serve(local(played), **CLIENTS),
        tools=[{"type": "apply_patch"}],
        tool_choice={"type": "apply_patch"},
    )
    assert answer.output[0]["operation"] == {"type": "delete_file", "path": "a"}
    ((_, sampling),) = played.requests
    assert sampling.constraint is not None and sampling.constraint.needed


@pytest.mark.requirement("API-SHELL")
async def test_commands_run_here(serve: Serve, ask: Ask) -> None:
    held = containers()
    script = [called("shell", {"commands": ["say hello", "fail", "hang", "say never"]}), "Hm."]
    server = serve(local(engine(script)), providers={"shell": Shell(held)}, containers=held)
    answer = await ask(server, tools=[HERE])
    call, output, message = answer.output
    assert (call["type"], output["type"], message["type"]) == (
        "shell_call",
        "shell_call_output",
        "message",
    )
    assert call["action"]["commands"] == ["say hello", "fail", "hang", "say never"]
    assert call["environment"]["type"] == "container_reference"
    assert output["call_id"] == call["call_id"] and call["status"] == "completed"
    assert output["output"] == [
        {"stdout": "hello\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
        {
            "stdout": "Traceback: no\n",
            "stderr": "no\n",
            "outcome": {"type": "exit", "exit_code": 1},
        },
        {"stdout": "so far\n", "stderr": "", "outcome": {"type": "timeout"}},
    ]
    assert "hello" in prompts(server)[1]


async def test_the_shell_finds_its_container_again(serve: Serve, wait: Ask, stores: Store) -> None:
    held = containers()
    script = [
        called("shell", {"commands": ["save a.txt 1"]}),
        "Saved.",
        called("shell", {"commands": ["list"]}),
        "There.",
    ]
    server = serve(
        local(engine(script)), on=stores, providers={"shell": Shell(held)}, containers=held
    )
    first = await wait(server, tools=[HERE])
    second = await wait(server, tools=[HERE], previous_response_id=first.ended["id"], input="And?")
    assert second.output[1]["output"][0]["stdout"] == "a.txt\n"


@pytest.mark.parametrize(
    ("environment", "param"),
    [
        ({"type": "cloud"}, "tools[0].environment.type"),
        ({"type": "container_auto", "memory_limit": "64g"}, "tools[0].environment.memory_limit"),
        ({"type": "container_auto", "skills": [{}]}, "tools[0].environment.skills"),
        ({"type": "container_reference"}, "tools[0].environment.container_id"),
        (
            {"type": "container_reference", "container_id": "cntr_x"},
            "tools[0].environment.container_id",
        ),
        (
            {"type": "container_auto", "file_ids": ["file-1", "file-9"]},
            "tools[0].environment.file_ids[1]",
        ),
        (
            {"type": "container_auto", "network_policy": {"type": "allowlist"}},
            "tools[0].environment.network_policy.type",
        ),
    ],
)
async def test_what_it_cannot_be_is_refused(
    serve: Serve, wait: Ask, environment: Any, param: str
) -> None:
    server = serve(providers={"shell": Shell(containers())})
    refused = (await wait(server, tools=[{"type": "shell", "environment": environment}])).refused
    assert (refused["http"], refused["param"]) == (400, param)


async def test_without_a_sandbox_only_the_client_has_a_shell(serve: Serve, wait: Ask) -> None:
    refused = (await wait(serve(**CLIENTS), tools=[HERE])).refused
    assert (refused["http"], refused["param"]) == (400, "tools[0].environment")


async def test_commands_run_in_a_real_sandbox(serve: Serve, wait: Ask) -> None:
    real = await sandbox(SMALL)
    held = containers(real, disk_bytes=SMALL.disk_bytes)
    script = [
        called("shell", {"commands": ["echo 42 > x; id -u", "cat x; exit 3"]}),
        "42.",
    ]
    async with held:
        server = serve(
            local(engine(script)), **{**with_code(held), "providers": {"shell": Shell(held)}}
        )
        answer = await wait(server, tools=[HERE])
        outputs = answer.output[1]["output"]
        assert [each["stdout"] for each in outputs] == ["1000\n", "42\n"]
        assert outputs[1]["outcome"] == {"type": "exit", "exit_code": 3}
