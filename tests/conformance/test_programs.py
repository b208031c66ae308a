"""programmatic_tool_calling: programs of the model call tools of the server and of the client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from antiphon.sandbox.javascript import JavaScript
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store.base import Store
from antiphon.tools.allowed_callers import callers_of
from antiphon.tools.base import AnyToolProvider
from antiphon.tools.client_tools.provider import CLIENT_TOOLS
from antiphon.tools.programs.provider import ProgramProvider
from antiphon.tools.shell import ShellProvider
from antiphon.wire.tools import Function
from tests.conformance.conftest import Serve
from tests.conformance.fake_containers import code_interpreter_options, containers
from tests.conformance.server import NOW, Ask, Json, engine, local
from tests.conformance.test_tool_search import rendered_prompts, tool_call

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
    return tool_call("program", {"input": code})


@pytest.fixture(scope="module")
def javascript() -> Iterator[JavaScript]:
    javascript = JavaScript(step_s=2)
    yield javascript
    javascript.close()


@pytest.fixture
def program_options(javascript: JavaScript) -> Mapping[str, Any]:
    """Return the options of a server that runs programs."""
    manager = containers()
    providers: dict[str, AnyToolProvider] = {
        **CLIENT_TOOLS,
        "shell": ShellProvider(manager),
        **code_interpreter_options(manager)["providers"],
        "programmatic_tool_calling": ProgramProvider(
            javascript, SEAL, clock=lambda: NOW, max_calls=20
        ),
    }
    return {"providers": providers, "containers": manager, "seal": SEAL}


def item_types(output: list[Json]) -> list[str]:
    return [item["type"] for item in output]


TWO = """const [a, b] = await Promise.all([tools.python("say four"), tools.python("say five")]);
text(a.trim() + " and " + b.trim());"""


@pytest.mark.requirement("API-PROGRAM")
async def test_program_calls_server_side_tools(
    serve: Serve, ask: Ask, program_options: Mapping[str, Any]
) -> None:
    server = serve(local(engine([program(TWO), "Four and five."])), **program_options)
    answer = await ask(server, tools=[PYTHON, PROGRAMS])
    created, first, second, output, message = answer.output
    assert item_types(answer.output) == [
        "program",
        "code_interpreter_call",
        "code_interpreter_call",
        "program_output",
        "message",
    ]
    assert created["code"] == TWO and created["fingerprint"]
    caller = {"type": "program", "caller_id": created["call_id"]}
    assert first["caller"] == second["caller"] == caller
    assert (first["code"], first["status"]) == ("say four", "completed")
    assert output["call_id"] == created["call_id"]
    assert (output["result"], output["status"]) == ("four and five", "completed")
    assert message["content"][0]["text"] == "Four and five."
    before, after = rendered_prompts(server)
    assert '"name": "program"' in before and "tools.python(input: string)" in before
    assert '"name": "python"' not in before
    assert "four and five" in after and "say four" in after


def client_outputs(output: list[Json], **values: Any) -> list[Json]:
    """Return the outputs that a client sends for the calls of an output, with their caller."""
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


@pytest.mark.requirement("API-PROGRAM-CLIENT")
async def test_call_of_an_absent_program_is_refused(serve: Serve, ask: Ask) -> None:
    caller = {"type": "program", "caller_id": "call_lost"}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "1"}
    answer = await ask(
        serve(local(engine(["ok"]))),
        input=[{**call, "caller": caller}, {**output, "caller": caller}],
    )
    assert answer.rejection["param"] == "input[0].caller"
    assert answer.rejection["message"] == "No program found with call_id call_lost."


ADDS = """const [a, b] = await Promise.all(["x", "y"].map(sku => tools.stock({sku})));
const c = await tools.stock({sku: "z"});
text({ total: a.pieces + b.pieces + c.pieces });"""


@pytest.mark.requirement("API-PROGRAM-CLIENT")
async def test_program_continues_after_client_output(
    serve: Serve, ask_foreground: Ask, program_options: Mapping[str, Any], store: Store
) -> None:
    server = serve(local(engine([program(ADDS), "Six."])), on=store, **program_options)
    tools = [stock(), PROGRAMS]
    first = await ask_foreground(server, tools=tools)
    assert item_types(first.output) == ["program", "function_call", "function_call"]
    assert first.terminal_response["status"] == "completed"
    caller = {"type": "program", "caller_id": first.output[0]["call_id"]}
    assert [item["caller"] for item in first.output[1:]] == [caller, caller]
    assert [item["arguments"] for item in first.output[1:]] == ['{"sku":"x"}', '{"sku":"y"}']
    second = await ask_foreground(
        server,
        tools=tools,
        previous_response_id=first.terminal_response["id"],
        input=client_outputs(first.output, x={"pieces": 1}, y={"pieces": 2}),
    )
    assert item_types(second.output) == ["function_call"]
    assert second.output[0]["arguments"] == '{"sku":"z"}'
    third = await ask_foreground(
        server,
        tools=tools,
        previous_response_id=second.terminal_response["id"],
        input=client_outputs(second.output, z={"pieces": 3}),
    )
    output, message = third.output
    assert output["type"] == "program_output" and output["call_id"] == caller["caller_id"]
    assert (output["result"], output["status"]) == ('{"total":6}', "completed")
    assert message["content"][0]["text"] == "Six."
    assert len(rendered_prompts(server)) == 2, "the model is not asked while a program runs"
    assert '{"pieces": 2}' not in rendered_prompts(server)[1], (
        "nor is it told what the calls came to"
    )


@pytest.mark.requirement("API-PROGRAM-CLIENT")
async def test_stateless_client_can_continue_a_program(
    serve: Serve, ask_foreground: Ask, program_options: Mapping[str, Any]
) -> None:
    script = [program(ADDS), "Six.", "You are welcome."]
    server = serve(local(engine(script)), **program_options)
    tools = [stock(), PROGRAMS]
    input: list[Json] = [{"role": "user", "content": "How many?"}]
    pieces = {"x": {"pieces": 1}, "y": {"pieces": 2}, "z": {"pieces": 3}}
    for expected in (["program", "function_call", "function_call"], ["function_call"]):
        answer = await ask_foreground(server, tools=tools, input=input, store=False)
        assert item_types(answer.output) == expected
        input += [*answer.output, *client_outputs(answer.output, **pieces)]
    answer = await ask_foreground(server, tools=tools, input=input, store=False)
    assert item_types(answer.output) == ["program_output", "message"]
    assert answer.output[0]["result"] == '{"total":6}'
    input += [*answer.output, {"role": "user", "content": "Thanks."}]
    assert (
        await ask_foreground(server, tools=tools, input=input, store=False)
    ).text == "You are welcome."


MIXED = """const here = await tools.python("say four");
const there = await tools.stock({sku: "x"});
text(here.trim(), there.pieces, await tools.python("say five"));"""


async def test_server_side_calls_are_not_repeated(
    serve: Serve, ask: Ask, program_options: Mapping[str, Any]
) -> None:
    server = serve(local(engine([program(MIXED), "Done."])), **program_options)
    tools = [stock(), PYTHON, PROGRAMS]
    first = await ask(server, tools=tools)
    assert item_types(first.output) == ["program", "code_interpreter_call", "function_call"]
    second = await ask(
        server,
        tools=tools,
        previous_response_id=first.terminal_response["id"],
        input=client_outputs(first.output, x={"pieces": 7}),
    )
    assert item_types(second.output) == ["code_interpreter_call", "program_output", "message"]
    assert second.output[0]["code"] == "say five"
    assert second.output[1]["result"] == "four 7 five\n"


@pytest.mark.requirement("API-PROGRAM-FAILS")
@pytest.mark.parametrize(
    ("code", "expected"),
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
    serve: Serve, ask_foreground: Ask, program_options: Mapping[str, Any], code: str, expected: str
) -> None:
    server = serve(local(engine([program(code), "Hm."])), **program_options)
    answer = await ask_foreground(server, tools=[stock(), PYTHON, PROGRAMS])
    output = next(item for item in answer.output if item["type"] == "program_output")
    assert output["status"] == "incomplete" and expected in output["result"]
    assert expected.split("\n")[-1] in rendered_prompts(server)[1]
    assert answer.terminal_response["status"] == "completed" and answer.text == "Hm."


@pytest.mark.requirement("API-PROGRAM-CALLERS")
async def test_direct_calls_name_their_caller(
    serve: Serve, ask_foreground: Ask, program_options: Mapping[str, Any]
) -> None:
    script = [program("text(1)"), tool_call("stock", {"sku": "x"})]
    server = serve(local(engine(script)), **program_options)
    answer = await ask_foreground(server, tools=[stock(BOTH), PROGRAMS])
    assert item_types(answer.output) == ["program", "program_output", "function_call"]
    assert answer.output[-1]["caller"] == {"type": "direct"}
    server = serve(local(engine([tool_call("stock", {"sku": "x"})])), **program_options)
    answer = await ask_foreground(server, tools=[stock(["direct"])])
    assert "caller" not in answer.output[0]
    assert tuple(callers_of(Function(name="f"))) == ("direct",)


@pytest.mark.requirement("API-PROGRAM-CHOICE")
async def test_tool_choice_forces_a_program(
    serve: Serve, ask_foreground: Ask, program_options: Mapping[str, Any]
) -> None:
    scripted_engine = engine([program("await tools.stock({sku: 'x'})"), "Done."])
    server = serve(local(scripted_engine), **program_options)
    body: Json = {"tools": [stock(BOTH), PROGRAMS], "tool_choice": PROGRAMS}
    first = await ask_foreground(server, **body)
    (_, sampling) = scripted_engine.requests[0]
    assert sampling.constraint is not None and sampling.constraint.needed
    assert "program" in sampling.constraint.lark and "stock" not in sampling.constraint.lark
    second = await ask_foreground(
        server,
        **body,
        previous_response_id=first.terminal_response["id"],
        input=client_outputs(first.output, x={}),
    )
    assert item_types(second.output) == ["program_output", "message"]
    (_, sampling) = scripted_engine.requests[1]
    assert sampling.constraint is None or not sampling.constraint.needed, "the choice is met"


async def test_custom_tools_namespaces_patches_and_shells(
    serve: Serve, ask_foreground: Ask, program_options: Mapping[str, Any]
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
    server = serve(local(engine([program(code), "Done."])), **program_options)
    first = await ask_foreground(server, tools=tools)
    created, noted, found, patched = first.output
    assert (noted["type"], noted["input"]) == ("custom_tool_call", "remember")
    assert (found["name"], found["namespace"]) == ("find", "crm")
    assert patched["operation"] == {"type": "delete_file", "path": "a.txt"}
    caller = noted["caller"]
    assert caller == patched["caller"] == {"type": "program", "caller_id": created["call_id"]}
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
    second = await ask_foreground(
        server,
        tools=tools,
        previous_response_id=first.terminal_response["id"],
        input=[{**output, "caller": caller} for output in outputs],
    )
    assert item_types(second.output) == [
        "shell_call",
        "shell_call_output",
        "program_output",
        "message",
    ]
    assert second.output[0]["caller"] == second.output[1]["caller"] == caller
    assert second.output[2]["result"] == "noted Ann completed hi"


@pytest.mark.requirement("API-PROGRAM-CALLERS")
@pytest.mark.parametrize(
    ("body", "param", "text"),
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
    serve: Serve, ask: Ask, program_options: Mapping[str, Any], body: Json, param: str, text: str
) -> None:
    rejection = (await ask(serve(**program_options), **body)).rejection
    assert (rejection["http"], rejection["param"]) == (400, param)
    assert text in rejection["message"]


async def test_unsupported_programs_are_dropped_and_cannot_be_forced(
    serve: Serve, ask_foreground: Ask
) -> None:
    server = serve(local(engine(["Hello."])))
    answer = await ask_foreground(server, tools=[stock(BOTH), PROGRAMS])
    assert answer.headers["x-antiphon-ignored-tools"] == "programmatic_tool_calling"
    assert answer.text == "Hello." and "tools.stock" not in rendered_prompts(server)[0]
    rejection = (await ask_foreground(server, tools=[PROGRAMS], tool_choice=PROGRAMS)).rejection
    assert (rejection["http"], rejection["param"]) == (400, "tool_choice")


@pytest.mark.requirement("API-PROGRAM-FINGERPRINT")
async def test_outputs_for_a_waiting_program_are_required(
    serve: Serve, ask_foreground: Ask, program_options: Mapping[str, Any]
) -> None:
    script = [program("await tools.stock({sku: 'x'})"), "Done."]
    server = serve(local(engine(script)), **program_options)
    tools = [stock(), PROGRAMS]
    first = await ask_foreground(server, tools=tools)
    created, call = first.output
    body: Json = {"tools": tools, "previous_response_id": first.terminal_response["id"]}
    rejection = (await ask_foreground(server, **body, input="And?")).rejection
    assert rejection["message"] == f"No tool output found for function call {call['call_id']}."
    output = client_outputs(first.output, x=1)
    rejection = (await ask_foreground(server, **{**body, "tools": []}, input=output)).rejection
    assert rejection["param"] == "tools" and created["call_id"] in rejection["message"]
    for change in ({"code": "text('mine')"}, {"fingerprint": "mine"}):
        replayed = ["hi", {**created, **change}, call, *output]
        input = [{"role": "user", "content": "hi"}, *replayed[1:]]
        rejection = (await ask_foreground(server, tools=tools, input=input)).rejection
        assert rejection["param"] == "input" and "fingerprint" in rejection["message"]


async def test_program_calls_count_toward_max_tool_calls(
    serve: Serve, ask_foreground: Ask, program_options: Mapping[str, Any]
) -> None:
    code = """const all = await Promise.allSettled([1, 2, 3].map(n => tools.python("say " + n)));
text(all.map(one => one.status === "fulfilled" ? one.value.trim() : one.reason.message));"""
    server = serve(local(engine([program(code), "Done."])), **program_options)
    answer = await ask_foreground(server, tools=[PYTHON, PROGRAMS], max_tool_calls=2)
    assert item_types(answer.output) == [
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
    serve: Serve, ask_foreground: Ask, program_options: Mapping[str, Any]
) -> None:
    script = [
        tool_call("stock", {"sku": "x"}),
        tool_call("python", {"input": "say hi"}),
        "I cannot.",
    ]
    server = serve(local(engine(script)), **program_options)
    answer = await ask_foreground(server, tools=[stock(), PYTHON, PROGRAMS])
    assert item_types(answer.output) == ["message"] and answer.text == "I cannot."
    assert "There is no tool 'stock'" in rendered_prompts(server)[1]
    assert "There is no tool 'python'" in rendered_prompts(server)[2]
