"""Client-side tools of the API, and the shell that may also run on the server."""

from __future__ import annotations

import itertools
import json
from base64 import b64encode
from typing import Any

import msgspec
import pytest

from antiphon.resources.skills import Skills
from antiphon.store.base import Store
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.sandbox import FakeSandbox
from antiphon.tools.base import ResponseContext
from antiphon.tools.client_tools.provider import CLIENT_TOOLS
from antiphon.tools.shell import ShellProvider
from antiphon.wire.tools import Tool
from tests.attachments.test_skill_bundles import zipped
from tests.conformance.conftest import Serve
from tests.conformance.fake_containers import (
    Clock,
    code_interpreter_options,
    containers,
    run_command,
)
from tests.conformance.server import Ask, engine, local
from tests.conformance.test_skills import manifest
from tests.conformance.test_tool_search import rendered_prompts, tool_call
from tests.sandbox.real_sandboxes import SMALL, sandbox

CLIENTS = {"providers": {**CLIENT_TOOLS, "shell": ShellProvider(None)}}
PREVIEW = {"display_width": 1, "display_height": 1, "environment": "browser"}
HERE = {"type": "shell", "environment": {"type": "container_auto"}}
#: Arguments with a lone surrogate in every text.
HALF = (
    '{"commands": ["a\\ud800"], "command": ["a\\ud800"], "path": "a\\ud800", "diff": "a\\ud800",'
    ' "action": {"type": "type", "text": "a\\ud800"}}'
)
SKILL_REFERENCE = {"type": "skill_reference", "skill_id": "skill"}


def inline_skill(name: str, about: str = "What for.", **source: str) -> dict[str, Any]:
    """Return a skill that the request contains."""
    content = zipped({"any/skill.md": manifest(name), "any/data.txt": b"7"})
    zip = {"type": "base64", "media_type": "application/zip", "data": b64encode(content).decode()}
    return {"type": "inline", "name": name, "description": about, "source": {**zip, **source}}


async def library() -> Skills:
    """Return a library with one skill in two versions; the first is the default."""
    numbers = itertools.count()
    skill_library = Skills(
        MemoryStore(),
        clock=Clock(),
        ids=lambda prefix: prefix if prefix == "skill" else f"{prefix}_{next(numbers)}",
    )
    for about in ("Adds numbers.", "Adds more."):
        files = {"SKILL.md": manifest("sums", about), "add.py": about.encode()}
        if about == "Adds numbers.":
            await skill_library.create("default", files)
        else:
            await skill_library.add_version("default", "skill", files, default=False)
    return skill_library


#: Tool, model output, call item, client output, text that the model sees.
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
@pytest.mark.parametrize(("tool", "arguments", "item", "output", "expected"), CALLS)
async def test_client_runs_the_command(
    serve: Serve, ask: Ask, tool: Any, arguments: Any, item: Any, output: Any, expected: str
) -> None:
    name = "local_shell" if tool["type"] == "local_shell" else tool["type"]
    server = serve(local(engine([tool_call(name, arguments), "So it is."])), **CLIENTS)
    answer = await ask(server, tools=[tool])
    (created,) = answer.output
    assert {key: created[key] for key in item} == item
    assert created["status"] == "completed" and answer.terminal_response["status"] == "completed"
    assert f'"{name}"' in rendered_prompts(server)[0]
    if output is None or not answer.terminal_response["store"]:
        return
    second = await ask(
        server,
        tools=[tool],
        previous_response_id=answer.terminal_response["id"],
        input=[{**output, "call_id": created["call_id"]}],
    )
    assert second.text == "So it is." and expected in rendered_prompts(server)[1]


async def test_commands_stream_one_by_one(serve: Serve, ask: Ask) -> None:
    server = serve(local(engine([tool_call("shell", {"commands": ["ls", "pwd"]})])), **CLIENTS)
    answer = await ask(server, tools=[{"type": "shell"}])
    messages = [e for e in answer.events or () if "shell_call_command" in e["type"]]
    if answer.events:
        for at, command in enumerate(("ls", "pwd")):
            mine = [e for e in messages if e["command_index"] == at]
            assert [e["type"].rpartition(".")[2] for e in mine] == [
                "added",
                *["delta"] * (len(mine) - 2),
                "done",
            ]
            deltas = [e["delta"] for e in mine[1:-1]]
            assert len(deltas) > 1, "all at once"
            assert "".join(deltas) == mine[-1]["command"] == command


async def test_truncated_commands_are_closed(serve: Serve, ask: Ask) -> None:
    script = [tool_call("shell", {"commands": ["ls", "pwd and so on"]})]
    server = serve(local(engine(script)), **CLIENTS)
    limit = script[0].index(" so on")
    answer = await ask(server, tools=[{"type": "shell"}], max_output_tokens=limit)
    assert answer.terminal_response["status"] == "incomplete"
    if answer.events:
        done = [e["command"] for e in answer.events if e["type"].endswith("command.done")]
        assert done[0] == "ls" and len(done) == 2 and "pwd and so on".startswith(done[1])


@pytest.mark.parametrize("tool", sorted(CLIENT_TOOLS))
@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"ls"', '{"commands": 3}', "null", HALF])
async def test_any_arguments_make_a_valid_item(tool: str, arguments: str) -> None:
    context = ResponseContext(tenant="t", response_id="r", items=())
    more = PREVIEW if tool == "computer_use_preview" else {}
    declared = msgspec.convert({"type": tool, **more}, Tool)
    (function,) = await CLIENT_TOOLS[tool].declared_functions(declared, context)
    fields = function.parse_fields(arguments)
    assert fields.keys() <= {"action", "actions", "operation"}
    json.dumps(fields, ensure_ascii=False).encode()
    assert (function.argument_observer is not None) == (tool == "shell")


async def test_tool_choice_forces_the_call(serve: Serve, ask_foreground: Ask) -> None:
    scripted_engine = engine([tool_call("apply_patch", {"type": "delete_file", "path": "a"})])
    answer = await ask_foreground(
        serve(local(scripted_engine), **CLIENTS),
        tools=[{"type": "apply_patch"}],
        tool_choice={"type": "apply_patch"},
    )
    assert answer.output[0]["operation"] == {"type": "delete_file", "path": "a"}
    ((_, sampling),) = scripted_engine.requests
    assert sampling.constraint is not None and sampling.constraint.needed


@pytest.mark.requirement("API-SHELL", "API-SHELL-STREAM")
async def test_commands_run_in_a_container(serve: Serve, ask: Ask) -> None:
    manager = containers()
    script = [tool_call("shell", {"commands": ["say hello", "fail", "hang", "say never"]}), "Hm."]
    server = serve(
        local(engine(script)), providers={"shell": ShellProvider(manager)}, containers=manager
    )
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
    assert "hello" in rendered_prompts(server)[1]
    if answer.events:
        prompt_texts = [
            (e["type"].removeprefix("response."), e.get("command_index", e["output_index"]))
            for e in answer.events
            if e.get("output_index", 2) < 2 and not e["type"].startswith("response.shell_call_com")
        ]
        content = "shell_call_output_content"
        assert prompt_texts == [
            ("output_item.added", 0),
            ("output_item.done", 0),
            ("output_item.added", 1),
            (f"{content}.delta", 0),
            (f"{content}.done", 0),
            (f"{content}.delta", 1),
            (f"{content}.delta", 1),
            (f"{content}.done", 1),
            (f"{content}.delta", 2),
            (f"{content}.done", 2),
            ("output_item.done", 1),
        ]
        deltas = [e["delta"] for e in answer.events if e["type"] == f"response.{content}.delta"]
        assert deltas == [
            {"stdout": "hello\n"},
            {"stdout": "Traceback: no\n"},
            {"stderr": "no\n"},
            {"stdout": "so far\n"},
        ]
        done = [e["output"] for e in answer.events if e["type"] == f"response.{content}.done"]
        assert [chunk for (chunk,) in done] == output["output"]


async def test_shell_reuses_its_container(serve: Serve, ask_foreground: Ask, store: Store) -> None:
    manager = containers()
    script = [
        tool_call("shell", {"commands": ["save a.txt 1"]}),
        "Saved.",
        tool_call("shell", {"commands": ["list"]}),
        "There.",
    ]
    server = serve(
        local(engine(script)),
        on=store,
        providers={"shell": ShellProvider(manager)},
        containers=manager,
    )
    first = await ask_foreground(server, tools=[HERE])
    second = await ask_foreground(
        server, tools=[HERE], previous_response_id=first.terminal_response["id"], input="And?"
    )
    assert second.output[1]["output"][0]["stdout"] == "a.txt\n"


@pytest.mark.parametrize(
    ("environment", "param"),
    [
        ({"type": "cloud"}, "tools[0].environment.type"),
        ({"type": "container_auto", "memory_limit": "64g"}, "tools[0].environment.memory_limit"),
        ({"type": "container_auto", "skills": {}}, "tools[0].environment.skills"),
        ({"type": "container_auto", "skills": [{}]}, "tools[0].environment.skills[0].type"),
        ({"type": "container_auto", "skills": [{}] * 201}, "tools[0].environment.skills"),
        (
            {"type": "container_auto", "skills": [{"type": "skill_reference"}]},
            "tools[0].environment.skills[0].skill_id",
        ),
        (
            {
                "type": "container_auto",
                "skills": [SKILL_REFERENCE, {**SKILL_REFERENCE, "skill_id": "skill_x"}],
            },
            "tools[0].environment.skills[1].skill_id",
        ),
        (
            {"type": "container_auto", "skills": [{**SKILL_REFERENCE, "version": "7"}]},
            "tools[0].environment.skills[0].version",
        ),
        (
            {"type": "container_auto", "skills": [{**SKILL_REFERENCE, "version": "new"}]},
            "tools[0].environment.skills[0].version",
        ),
        (
            {"type": "container_auto", "skills": [SKILL_REFERENCE, SKILL_REFERENCE]},
            "tools[0].environment.skills[1]",
        ),
        (
            {"type": "container_auto", "skills": [inline_skill("../x")]},
            "tools[0].environment.skills[0].name",
        ),
        (
            {"type": "container_auto", "skills": [inline_skill("x", data="no base64")]},
            "tools[0].environment.skills[0].source.data",
        ),
        (
            {"type": "container_auto", "skills": [inline_skill("x", data="UEs=")]},
            "tools[0].environment.skills[0].source.data",
        ),
        (
            {"type": "container_auto", "skills": [inline_skill("x", media_type="text/plain")]},
            "tools[0].environment.skills[0].source.media_type",
        ),
        (
            {"type": "local", "skills": [{"name": "x"}]},
            "tools[0].environment.skills[0].description",
        ),
        ({"type": "local", "file_ids": ["file-1"]}, "tools[0].environment.file_ids"),
        (
            {"type": "container_reference", "container_id": "cntr_x", "skills": [SKILL_REFERENCE]},
            "tools[0].environment.skills",
        ),
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
            "tools[0].environment.network_policy.allowed_domains",
        ),
        (
            {
                "type": "container_auto",
                "network_policy": {"type": "allowlist", "allowed_domains": ["a.example"]},
            },
            "tools[0].environment.network_policy.type",
        ),
    ],
)
async def test_invalid_environment_is_rejected(
    serve: Serve, ask_foreground: Ask, environment: Any, param: str
) -> None:
    server = serve(providers={"shell": ShellProvider(containers(library=await library()))})
    rejection = (
        await ask_foreground(server, tools=[{"type": "shell", "environment": environment}])
    ).rejection
    assert (rejection["http"], rejection["param"]) == (400, param)


async def test_only_the_local_shell_works_without_a_sandbox(
    serve: Serve, ask_foreground: Ask
) -> None:
    rejection = (await ask_foreground(serve(**CLIENTS), tools=[HERE])).rejection
    assert (rejection["http"], rejection["param"]) == (400, "tools[0].environment")


@pytest.mark.requirement("API-SHELL-SKILLS")
async def test_skills_are_mounted_and_in_the_prompt(serve: Serve, ask: Ask) -> None:
    box = FakeSandbox(run_command)
    manager = containers(box, library=await library())
    script = [tool_call("shell", {"commands": ["say hi"]}), "Hi."]
    server = serve(
        local(engine(script)), providers={"shell": ShellProvider(manager)}, containers=manager
    )
    skills = [{**SKILL_REFERENCE, "version": "latest"}, inline_skill("dice", "Rolls\n dice.")]
    tool = {"type": "shell", "environment": {"type": "container_auto", "skills": skills}}
    answer = await ask(server, tools=[tool])
    assert answer.terminal_response["tools"][0]["environment"]["skills"] == skills
    assert answer.output[1]["output"][0]["stdout"] == "hi\n"
    (created,) = box.boxes
    assert {name: sorted(files) for name, files in created.shared_files.items()} == {
        "sums": ["SKILL.md", "add.py"],
        "dice": ["SKILL.md", "data.txt"],
    }
    assert created.shared_files["sums"]["add.py"] == b"Adds more."
    prompt = rendered_prompts(server)[0]
    assert "- sums (/mnt/skills/sums/SKILL.md): Adds more." in prompt
    assert "- dice (/mnt/skills/dice/SKILL.md): Rolls dice." in prompt


async def test_later_request_may_replace_skills(
    serve: Serve, ask_foreground: Ask, store: Store
) -> None:
    box = FakeSandbox(run_command)
    manager = containers(box, library=await library())
    script = [tool_call("shell", {"commands": ["say hi"]}), "Hi."] * 2
    server = serve(
        local(engine(script)),
        on=store,
        providers={"shell": ShellProvider(manager)},
        containers=manager,
    )

    def tool(version: str) -> Any:
        skills = [{**SKILL_REFERENCE, "version": version}]
        return {"type": "shell", "environment": {"type": "container_auto", "skills": skills}}

    first = await ask_foreground(server, tools=[tool("1")])
    assert box.boxes[0].shared_files["sums"]["add.py"] == b"Adds numbers."
    await ask_foreground(
        server, tools=[tool("2")], previous_response_id=first.terminal_response["id"], input="And?"
    )
    assert len(box.boxes) == 1 and box.boxes[0].shared_files["sums"]["add.py"] == b"Adds more."


@pytest.mark.requirement("API-SHELL-SKILLS")
async def test_client_container_has_skills(serve: Serve, ask_foreground: Ask) -> None:
    box = FakeSandbox(run_command)
    manager = containers(box, library=await library())
    script = [tool_call("shell", {"commands": ["say hi"]}), "Hi."]
    server = serve(
        local(engine(script)), providers={"shell": ShellProvider(manager)}, containers=manager
    )
    request_body = {"name": "mine", "skills": [SKILL_REFERENCE, inline_skill("dice")]}
    created = (await server.client.post("/v1/containers", json=request_body)).json()
    assert sorted(box.boxes[0].shared_files) == ["dice", "sums"]
    environment = {"type": "container_reference", "container_id": created["id"]}
    await ask_foreground(server, tools=[{"type": "shell", "environment": environment}])
    assert "- sums (/mnt/skills/sums/SKILL.md): Adds numbers." in rendered_prompts(server)[0]
    for skills, param in (
        ([{**SKILL_REFERENCE, "skill_id": "x"}], "skills[0].skill_id"),
        ([inline_skill("x", data="UEs=")], "skills[0].source.data"),
    ):
        body = {"name": "mine", "skills": skills}
        rejection = await server.client.post("/v1/containers", json=body)
        assert (rejection.status_code, rejection.json()["error"]["param"]) == (400, param)


@pytest.mark.requirement("API-SHELL-SKILLS")
async def test_local_skills_are_in_the_prompt(serve: Serve, ask: Ask) -> None:
    server = serve(local(engine([tool_call("shell", {"commands": ["ls"]})])), **CLIENTS)
    skills = [{"name": "sums", "description": "Adds numbers.", "path": "/home/me/sums"}]
    tool = {"type": "shell", "environment": {"type": "local", "skills": skills}}
    answer = await ask(server, tools=[tool])
    assert "- sums (/home/me/sums/SKILL.md): Adds numbers." in rendered_prompts(server)[0]
    assert answer.output[0]["environment"] == {"type": "local"}


async def test_skill_deleted_before_use_fails_the_call(serve: Serve, ask_foreground: Ask) -> None:
    skill_library = await library()
    manager = containers(library=skill_library)
    script = [tool_call("shell", {"commands": ["say hi"]}), "No."]
    server = serve(
        local(engine(script)), providers={"shell": ShellProvider(manager)}, containers=manager
    )

    async def read_bundle(tenant: str, skill_id: str, version: str | None = None) -> bytes:
        await skill_library.delete(tenant, skill_id)
        return await Skills.read_bundle(skill_library, tenant, skill_id, version)

    skill_library.read_bundle = read_bundle  # type: ignore[method-assign]
    tool = {"type": "shell", "environment": {"type": "container_auto", "skills": [SKILL_REFERENCE]}}
    answer = await ask_foreground(server, tools=[tool])
    assert answer.output[0]["status"] == "incomplete"
    assert answer.output[0]["action"]["commands"] == ["say hi"]
    assert "Skill with id 'skill' not found" in rendered_prompts(server)[1]


async def test_commands_run_in_a_real_sandbox(serve: Serve, ask_foreground: Ask) -> None:
    real = await sandbox(SMALL)
    manager = containers(real, disk_bytes=SMALL.disk_bytes)
    script = [
        tool_call("shell", {"commands": ["echo 42 > x; id -u", "cat x; exit 3"]}),
        "42.",
    ]
    async with manager:
        server = serve(
            local(engine(script)),
            **{**code_interpreter_options(manager), "providers": {"shell": ShellProvider(manager)}},
        )
        answer = await ask_foreground(server, tools=[HERE])
        outputs = answer.output[1]["output"]
        assert [each["stdout"] for each in outputs] == ["1000\n", "42\n"]
        assert outputs[1]["outcome"] == {"type": "exit", "exit_code": 3}
