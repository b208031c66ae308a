"""code_interpreter: the model's code runs in a container, and the model sees the result."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.store.base import Store
from antiphon.testing.sandbox import FakeSandbox
from antiphon.tools.containers.registry import ContainerChoice
from antiphon.wire.resources.containers import CreateContainer
from tests.conformance.conftest import Serve
from tests.conformance.fake_containers import (
    Clock,
    Uploads,
    code_interpreter_options,
    containers,
    run_command,
)
from tests.conformance.server import Ask, engine, local
from tests.conformance.test_tool_search import rendered_prompts, tool_call
from tests.sandbox.real_sandboxes import SMALL, sandbox

CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
OUTPUTS = ["code_interpreter_call.outputs"]


def python_call(code: str) -> str:
    return tool_call("python", {"input": code})


@pytest.mark.requirement("D-15", "VN-86")
async def test_code_runs_and_the_model_continues(serve: Serve, ask: Ask) -> None:
    server = serve(
        local(engine([python_call("say four"), "It is four."])),
        **code_interpreter_options(containers()),
    )
    answer = await ask(server, tools=[CODE], include=OUTPUTS)
    ran, message = answer.output
    assert (ran["type"], ran["status"], ran["code"]) == (
        "code_interpreter_call",
        "completed",
        "say four",
    )
    assert ran["container_id"].startswith("cntr_")
    assert ran["outputs"] == [{"type": "logs", "logs": "four\n"}]
    assert message["content"][0]["text"] == "It is four."
    assert "four" in rendered_prompts(server)[1]
    if answer.events:
        types = [e["type"].removeprefix("response.") for e in answer.events]
        steps = [t for t in types if t.startswith(("code_interpreter", "output_item"))]
        deltas = steps.count("code_interpreter_call_code.delta")
        assert deltas > 0 and steps == [
            "output_item.added",
            "code_interpreter_call.in_progress",
            *["code_interpreter_call_code.delta"] * deltas,
            "code_interpreter_call_code.done",
            "code_interpreter_call.interpreting",
            "code_interpreter_call.completed",
            "output_item.done",
            "output_item.added",
            "output_item.done",
        ]


async def test_outputs_are_included_only_on_request(serve: Serve, ask_foreground: Ask) -> None:
    server = serve(
        local(engine([python_call("say four"), "Four."])), **code_interpreter_options(containers())
    )
    answer = await ask_foreground(server, tools=[CODE])
    assert answer.output[0]["outputs"] is None and answer.text == "Four."


async def test_written_files_are_cited(serve: Serve, ask: Ask) -> None:
    text = "Here: [data](sandbox:/mnt/data/a.csv)."
    script = [python_call("save a.csv 1"), python_call("show plot.png"), text]
    server = serve(local(engine(script)), **code_interpreter_options(containers()))
    answer = await ask(server, tools=[CODE], include=OUTPUTS)
    _, drawn, message = answer.output
    assert drawn["outputs"] == [{"type": "image", "url": "data:image/png;base64,iVBORw=="}]
    (part,) = message["content"]
    named, other = part["annotations"]
    assert {a["type"] for a in part["annotations"]} == {"container_file_citation"}
    assert text[named["start_index"] : named["end_index"]] == "sandbox:/mnt/data/a.csv"
    assert named["filename"] == "a.csv" and named["container_id"] == drawn["container_id"]
    assert other["filename"] == "plot.png"
    assert other["start_index"] == other["end_index"] == len(text)
    received = await server.client.get(
        f"/v1/containers/{named['container_id']}/files/{named['file_id']}/content"
    )
    assert received.content == b"1"


async def test_exception_is_output_and_interruption_is_failure(serve: Serve, ask: Ask) -> None:
    script = [python_call("fail"), python_call("hang"), python_call("die"), "I give up."]
    server = serve(local(engine(script)), **code_interpreter_options(containers()))
    answer = await ask(server, tools=[CODE], include=OUTPUTS)
    raised, hung, died, message = answer.output
    assert (raised["status"], hung["status"], died["status"]) == ("completed", "failed", "failed")
    assert raised["outputs"][0]["logs"] == "Traceback: no\n"
    assert answer.terminal_response["status"] == "completed" and message["type"] == "message"
    prompt = rendered_prompts(server)[-1]
    assert "It took too long and was interrupted." in prompt and "Variables are gone" in prompt


async def test_container_of_the_last_call_is_reused(
    serve: Serve, ask_foreground: Ask, store: Store
) -> None:
    box = FakeSandbox(run_command)
    script = [python_call("save a.csv 1"), "Saved.", python_call("list"), "a.csv is there."]
    server = serve(local(engine(script)), on=store, **code_interpreter_options(containers(box)))
    first = await ask_foreground(server, tools=[CODE])
    second = await ask_foreground(
        server,
        tools=[CODE],
        previous_response_id=first.terminal_response["id"],
        input="And?",
        include=OUTPUTS,
    )
    assert second.output[0]["container_id"] == first.output[0]["container_id"]
    assert second.output[0]["outputs"] == [{"type": "logs", "logs": "a.csv\n"}]
    assert len(box.boxes) == 1


async def test_expired_auto_container_is_replaced(serve: Serve, ask_foreground: Ask) -> None:
    clock = Clock()
    registry = containers(clock=clock)
    script = [python_call("save a.csv 1"), "Saved.", python_call("list"), "Gone."]
    server = serve(local(engine(script)), **code_interpreter_options(registry))
    first = await ask_foreground(server, tools=[CODE])
    clock.now += 1201
    second = await ask_foreground(
        server,
        tools=[CODE],
        previous_response_id=first.terminal_response["id"],
        input="?",
        include=OUTPUTS,
    )
    assert second.output[0]["container_id"] != first.output[0]["container_id"]
    assert second.output[0]["outputs"] == [{"type": "logs", "logs": "\n"}]


async def test_client_container_and_its_files(serve: Serve, ask_foreground: Ask) -> None:
    registry = containers()
    server = serve(
        local(engine([python_call("list"), "One file."])), **code_interpreter_options(registry)
    )
    created = (
        await server.client.post("/v1/containers", json={"name": "mine", "file_ids": ["file-1"]})
    ).json()
    tool = {"type": "code_interpreter", "container": created["id"]}
    answer = await ask_foreground(server, tools=[tool], include=OUTPUTS)
    assert answer.output[0]["outputs"] == [{"type": "logs", "logs": "numbers.csv\n"}]
    assert answer.output[0]["container_id"] == created["id"]


@pytest.mark.requirement("API-CONTAINER-NAMED")
async def test_unknown_container_is_rejected(serve: Serve, ask: Ask) -> None:
    server = serve(**code_interpreter_options(containers()))
    rejection = (
        await ask(server, tools=[{"type": "code_interpreter", "container": "cntr_x"}])
    ).rejection
    assert (rejection["http"], rejection["param"]) == (400, "tools[0].container")
    assert "'cntr_x' not found" in rejection["message"]


@pytest.mark.requirement("API-CONTAINER-NAMED")
async def test_expired_container_is_rejected(serve: Serve, ask: Ask) -> None:
    clock = Clock()
    server = serve(**code_interpreter_options(containers(clock=clock)))
    created = (await server.client.post("/v1/containers", json={"name": "mine"})).json()
    clock.now += 1201
    tools = [CODE, {"type": "code_interpreter", "container": created["id"]}]
    rejection = (await ask(server, tools=tools)).rejection
    assert (rejection["http"], rejection["param"]) == (400, "tools[1].container")
    assert rejection["code"] == "container_expired"


async def test_container_deleted_before_the_run_fails_the_response(
    serve: Serve, ask_foreground: Ask
) -> None:
    registry = containers()
    server = serve(**code_interpreter_options(registry))
    created = await registry.create("default", CreateContainer(name="mine"))
    tool = {"type": "code_interpreter", "container": created.id}
    admitted = registry.check_access

    async def check(tenant: str, choice: ContainerChoice, path: str) -> None:
        await admitted(tenant, choice, path)
        await registry.delete(tenant, created.id)

    registry.check_access = check  # type: ignore[method-assign]
    answer = await ask_foreground(server, tools=[tool])
    assert answer.error is not None and "not found" in answer.error["message"]


async def test_requested_files_are_in_the_container(serve: Serve, ask_foreground: Ask) -> None:
    auto = {"type": "auto", "file_ids": ["file-1"], "memory_limit": "1g"}
    server = serve(
        local(engine([python_call("list"), "There."])), **code_interpreter_options(containers())
    )
    tool = {"type": "code_interpreter", "container": auto}
    answer = await ask_foreground(server, tools=[tool], include=OUTPUTS)
    assert answer.output[0]["outputs"] == [{"type": "logs", "logs": "numbers.csv\n"}]


@pytest.mark.requirement("API-CONTAINER-NAMED")
async def test_unknown_file_is_rejected(serve: Serve, ask: Ask) -> None:
    auto = {"type": "auto", "file_ids": ["file-1", "file-9"]}
    server = serve(**code_interpreter_options(containers()))
    rejection = (
        await ask(server, tools=[{"type": "code_interpreter", "container": auto}])
    ).rejection
    assert (rejection["http"], rejection["param"]) == (400, "tools[0].container.file_ids[1]")


async def test_file_deleted_before_use_fails_the_call(serve: Serve, ask_foreground: Ask) -> None:
    class Forgetful(Uploads):
        async def get_name(self, tenant: str, file_id: str) -> str | None:
            return "a.txt"

    auto = {"type": "auto", "file_ids": ["file-9"]}
    registry = containers(uploads=Forgetful({}))
    server = serve(
        local(engine([python_call("list"), "No."])), **code_interpreter_options(registry)
    )
    answer = await ask_foreground(server, tools=[{"type": "code_interpreter", "container": auto}])
    assert answer.output[0]["status"] == "failed" and "file-9" in rendered_prompts(server)[1]


async def test_later_files_are_added_to_the_container(serve: Serve, ask_foreground: Ask) -> None:
    box = FakeSandbox(run_command)
    script = [python_call("save a.csv 1"), "Saved.", python_call("list"), "Two."]
    server = serve(local(engine(script)), **code_interpreter_options(containers(box)))
    first = await ask_foreground(server, tools=[CODE])
    auto = {"type": "auto", "file_ids": ["file-1"]}
    second = await ask_foreground(
        server,
        tools=[{"type": "code_interpreter", "container": auto}],
        previous_response_id=first.terminal_response["id"],
        input="And?",
        include=OUTPUTS,
    )
    assert second.output[0]["outputs"] == [{"type": "logs", "logs": "a.csv numbers.csv\n"}]
    assert len(box.boxes) == 1


@pytest.mark.parametrize(
    ("container", "param"),
    [
        ({"type": "manual"}, "tools[0].container.type"),
        ({"type": "auto", "file_ids": "x"}, "tools[0].container.file_ids"),
        ({"type": "auto", "memory_limit": "2g"}, "tools[0].container.memory_limit"),
        ({"type": "auto", "memory_limit": "64g"}, "tools[0].container.memory_limit"),
        (
            {"type": "auto", "network_policy": {"type": "allowlist", "allowed_domains": ["x.org"]}},
            "tools[0].container.network_policy.type",
        ),
        ({"type": "auto", "gpu": True}, "tools[0].container.gpu"),
    ],
)
async def test_invalid_tool_fields_are_rejected(
    serve: Serve, ask: Ask, container: Any, param: str
) -> None:
    server = serve(**code_interpreter_options(containers()))
    rejection = (
        await ask(server, tools=[{"type": "code_interpreter", "container": container}])
    ).rejection
    assert (rejection["http"], rejection["param"]) == (400, param)


async def test_forced_call_and_unused_container_cleanup(serve: Serve, ask_foreground: Ask) -> None:
    registry = containers()
    scripted_engine = engine([python_call("say hi"), "Hi."])
    server = serve(local(scripted_engine), **code_interpreter_options(registry))
    answer = await ask_foreground(server, tools=[CODE], tool_choice={"type": "code_interpreter"})
    assert answer.output[0]["type"] == "code_interpreter_call"
    first, _ = (sampling.constraint for _, sampling in scripted_engine.requests)
    assert first is not None and first.needed and "python" in first.lark
    registry = containers()
    await ask_foreground(serve("No need.", **code_interpreter_options(registry)), tools=[CODE])
    assert list(registry.local) == [] and not await registry.count_active("default")


async def test_code_runs_in_a_real_sandbox(serve: Serve, ask_foreground: Ask) -> None:
    real = await sandbox(SMALL)
    registry = containers(real, disk_bytes=SMALL.disk_bytes)
    script = [
        python_call("x = 6"),
        python_call("open('/mnt/data/x.txt', 'w').write(str(7 * x))\nx * 7"),
        "It is 42, in x.txt.",
    ]
    async with registry:
        server = serve(local(engine(script)), **code_interpreter_options(registry))
        answer = await ask_foreground(server, tools=[CODE], include=OUTPUTS)
        _, second, message = answer.output
        assert second["outputs"] == [{"type": "logs", "logs": "42\n"}]
        (cited,) = message["content"][0]["annotations"]
        assert cited["filename"] == "x.txt"


async def test_later_turns_show_logs_without_images(serve: Serve, ask_foreground: Ask) -> None:
    """An image is a file in the container; as text it would fill the prompt."""
    script = [tool_call("python", {"input": "show dot.png"}), "Done.", "It is there."]
    server = serve(local(engine(script)), **code_interpreter_options(containers()))
    body: dict[str, Any] = {
        "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
        "include": ["code_interpreter_call.outputs"],
    }
    first = await ask_foreground(server, **body)
    (picture,) = first.output[0]["outputs"]
    assert picture["url"].startswith("data:image/png;base64,")
    await ask_foreground(
        server, **body, input=[*_resent(first), {"role": "user", "content": "And?"}]
    )
    prompt = rendered_prompts(server)[-1]
    assert "[picture]" in prompt and "base64" not in prompt


def _resent(answer: Any) -> list[Any]:
    return [{"role": "user", "content": "Draw!"}, *answer.output]
