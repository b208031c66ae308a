"""programmatic_tool_calling: programs of the model call tools, here and at the client's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from antiphon.sandbox.javascript import JavaScript
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store.base import Store
from antiphon.tools.base import ToolProvider
from antiphon.tools.client_tools.provider import CLIENT_TOOLS
from antiphon.tools.programs.provider import ProgramProvider
from antiphon.tools.shell import ShellProvider
from tests.conformance.boxes import containers, with_code
from tests.conformance.conftest import Serve
from tests.conformance.served import NOW, Ask, Json, engine, local
from tests.conformance.test_tool_search import called, prompts

PROGRAMS = {"type": "programmatic_tool_calling"}
BOTH, ONLY = ["direct", "programmatic"], ["programmatic"]
SEAL = Encryptor([EncryptionKey.from_secret(bytes(32))])
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}, "allowed_callers": ONLY}


def stock(callers: list[str] | None = None, **more: Any) -> Json:
    return {
        "type": "function",
        "name": "stock",
        "description": "Pieces in stock.",
        "parameters": {
            "type": "object",
            "properties": {"sku": {"type": "string"}},
            "required": ["sku"],
        },
        "output_schema": {"type": "object", "properties": {"pieces": {"type": "integer"}}},
        "allowed_callers": callers or ONLY,
        **more,
    }


def program(code: str) -> str:
    return called("program", {"input": code})


@pytest.fixture(scope="module")
def javascript() -> Iterator[JavaScript]:
    javascript = JavaScript(step_s=2)
    yield javascript
    javascript.close()


@pytest.fixture
def on(javascript: JavaScript) -> Mapping[str, Any]:
    """What a server that runs programs is made with."""
    held = containers()
    providers: dict[str, ToolProvider] = {
        **CLIENT_TOOLS,
        "shell": ShellProvider(held),
        **with_code(held)["providers"],
        "programmatic_tool_calling": ProgramProvider(
            javascript, SEAL, clock=lambda: NOW, max_calls=20
        ),
    }
    return {"providers": providers, "containers": held, "seal": SEAL}


def kinds(output: list[Json]) -> list[str]:
    return [item["type"] for item in output]


TWO = """const [a, b] = await Promise.all([tools.python("say four"), tools.python("say five")]);
text(a.trim() + " and " + b.trim());"""


@pytest.mark.requirement("API-PROGRAM")
async def test_program_calls_server_side_tools(
    serve: Serve, ask: Ask, on: Mapping[str, Any]
) -> None:
    server = serve(local(engine([program(TWO), "Four and five."])), **on)
    answer = await ask(server, tools=[PYTHON, PROGRAMS])
    made, first, second, output, message = answer.output
    assert kinds(answer.output) == [
        "program",
        "code_interpreter_call",
        "code_interpreter_call",
        "program_output",
        "message",
    ]
    assert made["code"] == TWO and made["fingerprint"]
    caller = {"type": "program", "caller_id": made["call_id"]}
    assert first["caller"] == second["caller"] == caller
    assert (first["code"], first["status"]) == ("say four", "completed")
    assert output["call_id"] == made["call_id"]
    assert (output["result"], output["status"]) == ("four and five", "completed")
    assert message["content"][0]["text"] == "Four and five."
    before, after = prompts(server)
    assert '"name": "program"' in before and "tools.python(input: string)" in before
    assert '"name": "python"' not in before
    assert "four and five" in after and "say four" in after


def answers(output: list[Json], **values: Any) -> list[Json]:
    """What a client sends back for the calls of an output: each as JSON, with its caller."""
    return [
        {
            "type": "function_call_output",
            "call_id": item["call_id"],
            "output": json.dumps(values[json.loads(item["arguments"])["sku"]]),
            "caller": item["caller"],
        }
        for item in output
        if item["type"] == "function_call"
    ]


ADDS = """const [a, b] = await Promise.all(["x", "y"].map(sku => tools.stock({sku})));
const c = await tools.stock({sku: "z"});
text({ total: a.pieces + b.pieces + c.pieces });"""


@pytest.mark.requirement("API-PROGRAM-CLIENT")
async def test_program_continues_after_client_output(
    serve: Serve, wait: Ask, on: Mapping[str, Any], stores: Store
) -> None:
    server = serve(local(engine([program(ADDS), "Six."])), on=stores, **on)
    tools = [stock(), PROGRAMS]
    first = await wait(server, tools=tools)
    assert kinds(first.output) == ["program", "function_call", "function_call"]
    assert first.ended["status"] == "completed"
    caller = {"type": "program", "caller_id": first.output[0]["call_id"]}
    assert [item["caller"] for item in first.output[1:]] == [caller, caller]
    assert [item["arguments"] for item in first.output[1:]] == ['{"sku":"x"}', '{"sku":"y"}']
    second = await wait(
        server,
        tools=tools,
        previous_response_id=first.ended["id"],
        input=answers(first.output, x={"pieces": 1}, y={"pieces": 2}),
    )
    assert kinds(second.output) == ["function_call"]
    assert second.output[0]["arguments"] == '{"sku":"z"}'
    third = await wait(
        server,
        tools=tools,
        previous_response_id=second.ended["id"],
        input=answers(second.output, z={"pieces": 3}),
    )
    output, message = third.output
    assert output["type"] == "program_output" and output["call_id"] == caller["caller_id"]
    assert (output["result"], output["status"]) == ('{"total":6}', "completed")
    assert message["content"][0]["text"] == "Six."
    assert len(prompts(server)) == 2, "the model is not asked while a program runs"
    assert '{"pieces": 2}' not in prompts(server)[1], "nor is it told what the calls came to"


@pytest.mark.requirement("API-PROGRAM-CLIENT")
async def test_stateless_client_can_continue_a_program(
    serve: Serve, wait: Ask, on: Mapping[str, Any]
) -> None:
    script = [program(ADDS), "Six.", "You are welcome."]
    server = serve(local(engine(script)), **on)
    tools = [stock(), PROGRAMS]
    input: list[Json] = [{"role": "user", "content": "How many?"}]
    pieces = {"x": {"pieces": 1}, "y": {"pieces": 2}, "z": {"pieces": 3}}
    for expected in (["program", "function_call", "function_call"], ["function_call"]):
        answer = await wait(server, tools=tools, input=input, store=False)
        assert kinds(answer.output) == expected
        input += [*answer.output, *answers(answer.output, **pieces)]
    answer = await wait(server, tools=tools, input=input, store=False)
    assert kinds(answer.output) == ["program_output", "message"]
    assert answer.output[0]["result"] == '{"total":6}'
    input += [*answer.output, {"role": "user", "content": "Thanks."}]
    assert (await wait(server, tools=tools, input=input, store=False)).text == "You are welcome."


MIXED = """const here = await tools.python("say four");
const there = await tools.stock({sku: "x"});
text(here.trim(), there.pieces, await tools.python("say five"));"""


async def test_server_side_calls_are_not_repeated(
    serve: Serve, ask: Ask, on: Mapping[str, Any]
) -> None:
    server = serve(local(engine([program(MIXED), "Done."])), **on)
    tools = [stock(), PYTHON, PROGRAMS]
    first = await ask(server, tools=tools)
    assert kinds(first.output) == ["program", "code_interpreter_call", "function_call"]
    second = await ask(
        server,
        tools=tools,
        previous_response_id=first.ended["id"],
        input=answers(first.output, x={"pieces": 7}),
    )
    assert kinds(second.output) == ["code_interpreter_call", "program_output", "message"]
    assert second.output[0]["code"] == "say five"
    assert second.output[1]["result"] == "four 7 five\n"


@pytest.mark.requirement("API-PROGRAM-FAILS")
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "text('so far'); throw new Error('no');",
            "so far\nThe program failed. Error: no (line 1)",
        ),
        ("let x = ;", "SyntaxError"),
        ("for (;;) {}", "It took too long"),
        ("await tools.unknown({});", "There is no tools.unknown."),
        ("await new Promise(() => {});", "never comes"),
        ("await tools.stock('x');", "The argument must be one object."),
        ("for (let i = 0; i < 50; i++) await tools.python('say ' + i);", "20 are possible"),
    ],
)
async def test_program_failure_is_reported(
    serve: Serve, wait: Ask, on: Mapping[str, Any], code: str, told: str
) -> None:
    server = serve(local(engine([program(code), "Hm."])), **on)
    answer = await wait(server, tools=[stock(), PYTHON, PROGRAMS])
    output = next(item for item in answer.output if item["type"] == "program_output")
    assert output["status"] == "incomplete" and told in output["result"]
    assert told.split("\n")[-1] in prompts(server)[1]
    assert answer.ended["status"] == "completed" and answer.text == "Hm."


@pytest.mark.requirement("API-PROGRAM-CALLERS")
async def test_direct_calls_name_their_caller(
    serve: Serve, wait: Ask, on: Mapping[str, Any]
) -> None:
    script = [program("text(1)"), called("stock", {"sku": "x"})]
    server = serve(local(engine(script)), **on)
    answer = await wait(server, tools=[stock(BOTH), PROGRAMS])
    assert kinds(answer.output) == ["program", "program_output", "function_call"]
    assert answer.output[-1]["caller"] == {"type": "direct"}
    server = serve(local(engine([called("stock", {"sku": "x"})])), **on)
    answer = await wait(server, tools=[stock(["direct"])])
    assert "caller" not in answer.output[0]


@pytest.mark.requirement("API-PROGRAM-CHOICE")
async def test_tool_choice_forces_a_program(serve: Serve, wait: Ask, on: Mapping[str, Any]) -> None:
    played = engine([program("await tools.stock({sku: 'x'})"), "Done."])
    server = serve(local(played), **on)
    asked: Json = {"tools": [stock(BOTH), PROGRAMS], "tool_choice": PROGRAMS}
    first = await wait(server, **asked)
    (_, sampling) = played.requests[0]
    assert sampling.constraint is not None and sampling.constraint.needed
    assert "program" in sampling.constraint.lark and "stock" not in sampling.constraint.lark
    second = await wait(
        server,
        **asked,
        previous_response_id=first.ended["id"],
        input=answers(first.output, x={}),
    )
    assert kinds(second.output) == ["program_output", "message"]
    (_, sampling) = played.requests[1]
    assert sampling.constraint is None or not sampling.constraint.needed, "the choice is met"


async def test_custom_tools_namespaces_patches_and_shells(
    serve: Serve, wait: Ask, on: Mapping[str, Any]
) -> None:
    code = """const [a, b, c] = await Promise.all([
  tools.note("remember"),
  tools.crm.find({who: "Ann"}),
  tools.apply_patch({type: "delete_file", path: "a.txt"}),
]);
const [run] = await tools.shell({commands: ["say hi"]});
text(a, b, c.status, run.stdout.trim());"""
    note = {"type": "custom", "name": "note", "allowed_callers": ONLY}
    find = {"type": "function", "name": "find", "parameters": {"type": "object"}}
    tools: list[Json] = [
        note,
        {
            "type": "namespace",
            "name": "crm",
            "description": "Customers",
            "tools": [{**find, "allowed_callers": ONLY}],
        },
        {"type": "apply_patch", "allowed_callers": ONLY},
        {
            "type": "shell",
            "environment": {"type": "container_auto"},
            "allowed_callers": ["programmatic"],
        },
        PROGRAMS,
    ]
    server = serve(local(engine([program(code), "Done."])), **on)
    first = await wait(server, tools=tools)
    made, noted, found, patched = first.output
    assert (noted["type"], noted["input"]) == ("custom_tool_call", "remember")
    assert (found["name"], found["namespace"]) == ("find", "crm")
    assert patched["operation"] == {"type": "delete_file", "path": "a.txt"}
    caller = noted["caller"]
    assert caller == patched["caller"] == {"type": "program", "caller_id": made["call_id"]}
    outputs = [
        {"type": "custom_tool_call_output", "call_id": noted["call_id"], "output": "noted"},
        {"type": "function_call_output", "call_id": found["call_id"], "output": "Ann"},
        {
            "type": "apply_patch_call_output",
            "call_id": patched["call_id"],
            "status": "completed",
            "output": "",
        },
    ]
    second = await wait(
        server,
        tools=tools,
        previous_response_id=first.ended["id"],
        input=[{**output, "caller": caller} for output in outputs],
    )
    assert kinds(second.output) == [
        "shell_call",
        "shell_call_output",
        "program_output",
        "message",
    ]
    assert second.output[0]["caller"] == second.output[1]["caller"] == caller
    assert second.output[2]["result"] == "noted Ann completed hi"


@pytest.mark.requirement("API-PROGRAM-CALLERS")
@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"tools": [stock()]}, "tools[0].allowed_callers", "programmatic_tool_calling"),
        ({"tools": [stock([])]}, "tools[0].allowed_callers", ""),
        ({"tools": [stock(["nobody"])]}, "tools[0].allowed_callers[0]", "direct"),
        (
            {
                "tools": [stock(), PROGRAMS],
                "tool_choice": {"type": "function", "name": "stock"},
            },
            "tool_choice",
            "programs only",
        ),
    ],
)
async def test_invalid_fields_are_rejected(
    serve: Serve, ask: Ask, on: Mapping[str, Any], body: Json, param: str, said: str
) -> None:
    refused = (await ask(serve(**on), **body)).refused
    assert (refused["http"], refused["param"]) == (400, param)
    assert said in refused["message"]


async def test_unsupported_programs_are_dropped_and_cannot_be_forced(
    serve: Serve, wait: Ask
) -> None:
    server = serve(local(engine(["Hello."])))
    answer = await wait(server, tools=[stock(BOTH), PROGRAMS])
    assert answer.headers["x-antiphon-ignored-tools"] == "programmatic_tool_calling"
    assert answer.text == "Hello." and "tools.stock" not in prompts(server)[0]
    refused = (await wait(server, tools=[PROGRAMS], tool_choice=PROGRAMS)).refused
    assert (refused["http"], refused["param"]) == (400, "tool_choice")


@pytest.mark.requirement("API-PROGRAM-FINGERPRINT")
async def test_outputs_for_a_waiting_program_are_required(
    serve: Serve, wait: Ask, on: Mapping[str, Any]
) -> None:
    script = [program("await tools.stock({sku: 'x'})"), "Done."]
    server = serve(local(engine(script)), **on)
    tools = [stock(), PROGRAMS]
    first = await wait(server, tools=tools)
    made, call = first.output
    asked: Json = {"tools": tools, "previous_response_id": first.ended["id"]}
    refused = (await wait(server, **asked, input="And?")).refused
    assert refused["message"] == f"No tool output found for function call {call['call_id']}."
    output = answers(first.output, x=1)
    refused = (await wait(server, **{**asked, "tools": []}, input=output)).refused
    assert refused["param"] == "tools" and made["call_id"] in refused["message"]
    for change in ({"code": "text('mine')"}, {"fingerprint": "mine"}):
        replayed = ["hi", {**made, **change}, call, *output]
        input = [{"role": "user", "content": "hi"}, *replayed[1:]]
        refused = (await wait(server, tools=tools, input=input)).refused
        assert refused["param"] == "input" and "fingerprint" in refused["message"]


async def test_program_calls_count_toward_max_tool_calls(
    serve: Serve, wait: Ask, on: Mapping[str, Any]
) -> None:
    code = """const all = await Promise.allSettled([1, 2, 3].map(n => tools.python("say " + n)));
text(all.map(one => one.status === "fulfilled" ? one.value.trim() : one.reason.message));"""
    server = serve(local(engine([program(code), "Done."])), **on)
    answer = await wait(server, tools=[PYTHON, PROGRAMS], max_tool_calls=2)
    assert kinds(answer.output) == [
        "program",
        "code_interpreter_call",
        "program_output",
        "message",
    ], "the program is one of them"
    assert json.loads(answer.output[2]["result"]) == [
        "1",
        *["No more calls of tools are possible in this response."] * 2,
    ]


async def test_model_cannot_call_program_only_tools(
    serve: Serve, wait: Ask, on: Mapping[str, Any]
) -> None:
    script = [called("stock", {"sku": "x"}), called("python", {"input": "say hi"}), "I cannot."]
    server = serve(local(engine(script)), **on)
    answer = await wait(server, tools=[stock(), PYTHON, PROGRAMS])
    assert kinds(answer.output) == ["message"] and answer.text == "I cannot."
    assert "There is no tool 'stock'" in prompts(server)[1]
    assert "There is no tool 'python'" in prompts(server)[2]
