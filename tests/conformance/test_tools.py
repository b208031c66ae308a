"""Tools: which are shown, which may be called, and how unsupported tools are reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
import structlog

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.inference.tokens import Constraint
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.tools.mcp.endpoint import McpEndpoint
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.sessions import SessionPool
from antiphon.tools.unavailable_tool import UnavailableTool
from tests.conformance.conftest import Serve
from tests.conformance.scripts import TOOL
from tests.conformance.server import Ask, Json, engine
from tests.dialects.grammars import ConstrainedWriter

OTHER = {**TOOL, "name": "get_time"}
GET_TIME = {"type": "function", "name": "get_time"}
GET_WEATHER = {"type": "function", "name": "get_weather"}
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ROME = PARIS.replace("Paris", "Rome")
TIME = PARIS.replace("get_weather", "get_time")
HOSTED = [
    {"type": "web_search"},
    {"type": "image_generation"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "home", "server_url": "https://example.org/mcp"},
]


def allows(constraint: Constraint | None, text: str, tokenizer: ByteTokenizer) -> bool:
    """Return whether the constraint allows the model to write ``text`` and end."""
    return constraint is None or ConstrainedWriter(tokenizer, constraint).may_write(text)


# --- tool_choice ---------------------------------------------------------------------------------


@pytest.mark.requirement("D-57", "VN-20", "VN-43", "API-TOOL-CHOICE")
@pytest.mark.parametrize(
    ("choice", "may", "may_not"),
    [
        ("auto", ["Just text.", PARIS, TIME], []),
        ("required", [PARIS, TIME, PARIS + "\n" + TIME], ["Just text."]),
        (GET_TIME, [TIME], ["Just text.", PARIS]),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [GET_TIME]},
            ["Just text.", TIME],
            [PARIS],
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [GET_TIME]},
            [TIME],
            ["Just text.", PARIS],
        ),
    ],
    ids=["auto", "required", "named", "allowed", "allowed and required"],
)
async def test_tool_choice_becomes_a_grammar(
    serve: Serve, ask: Ask, choice: Any, may: list[str], may_not: list[str]
) -> None:
    scripted_engine = engine([may[-1]])
    tools = [{**TOOL, "strict": choice != "auto"}, {**OTHER, "strict": choice != "auto"}]
    answer = await ask(serve(scripted_engine), tools=tools, tool_choice=choice)
    assert answer.terminal_response["tool_choice"] == choice
    constraint = scripted_engine.requests[0][1].constraint
    assert [text for text in may if not allows(constraint, text, scripted_engine.tokenizer)] == []
    assert [text for text in may_not if allows(constraint, text, scripted_engine.tokenizer)] == []


@pytest.mark.requirement("D-57", "API-TOOL-CHOICE-NONE")
async def test_tool_choice_none_hides_all_tools(serve: Serve, ask: Ask) -> None:
    scripted_engine = engine(["Just text."])
    answer = await ask(serve(scripted_engine), tools=[TOOL], tool_choice="none")
    assert "get_weather" not in scripted_engine.text(scripted_engine.requests[0][0])
    assert [item["type"] for item in answer.output] == ["message"]
    assert answer.terminal_response["tools"][0]["name"] == "get_weather"


@pytest.mark.requirement("API-TOOL-CHOICE-UNKNOWN")
async def test_unknown_tool_choice_is_rejected(serve: Serve, ask: Ask) -> None:
    choice = {"type": "function", "name": "get_rich"}
    rejection = (await ask(serve(), tools=[TOOL], tool_choice=choice)).rejection
    assert (rejection["http"], rejection["param"]) == (400, "tool_choice")


@pytest.mark.requirement("D-58", "API-PARALLEL")
@pytest.mark.parametrize(("parallel", "calls"), [(True, 2), (None, 2), (False, 1)])
async def test_parallel_tool_calls_false_allows_one_call(
    serve: Serve, ask: Ask, parallel: bool | None, calls: int
) -> None:
    scripted_engine = engine([f"{PARIS}\n{ROME}"])
    answer = await ask(serve(scripted_engine), tools=[TOOL], parallel_tool_calls=parallel)
    assert len(answer.output) == calls
    assert {item["type"] for item in answer.output} == {"function_call"}
    assert answer.terminal_response["status"] == "completed"
    assert scripted_engine.aborted == (calls == 1)


@pytest.mark.requirement("API-TOOL-CHOICE-ONCE")
@pytest.mark.parametrize(
    ("choice", "calls"),
    [
        (GET_WEATHER, 1),
        ({"type": "allowed_tools", "mode": "required", "tools": [GET_WEATHER]}, 2),
        ("required", 2),
    ],
)
async def test_named_function_is_called_once(
    serve: Serve, ask: Ask, choice: Any, calls: int
) -> None:
    scripted_engine = engine([f"{PARIS}\n{ROME}"])
    answer = await ask(serve(scripted_engine), tools=[TOOL], tool_choice=choice)
    assert [item["type"] for item in answer.output] == ["function_call"] * calls
    assert answer.terminal_response["status"] == "completed"
    assert answer.terminal_response["parallel_tool_calls"] is True
    assert scripted_engine.aborted == (calls == 1)


@pytest.mark.requirement("API-STRICT")
async def test_strict_arguments_follow_their_schema(serve: Serve, ask: Ask) -> None:
    scripted_engine = engine([PARIS])
    await ask(serve(scripted_engine), tools=[TOOL])
    constraint = scripted_engine.requests[0][1].constraint
    assert allows(constraint, PARIS, scripted_engine.tokenizer)
    assert not allows(constraint, PARIS.replace("city", "town"), scripted_engine.tokenizer)
    assert not allows(constraint, PARIS.replace('"Paris"', "7"), scripted_engine.tokenizer)


@pytest.mark.requirement("D-59", "VN-44", "API-FORMAT")
@pytest.mark.parametrize("kind", ["json_schema", "json_object"])
async def test_text_format_grammar_starts_after_reasoning(
    serve: Serve, ask: Ask, kind: str
) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": kind}
    if kind == "json_schema":
        form |= {"name": "n", "schema": schema, "strict": True}
    reply = '<think>\nIs it {?\n</think>\n\n{"a": 1}'
    scripted_engine = engine([reply])
    answer = await ask(serve(scripted_engine), text={"format": form})
    assert json.loads(answer.text) == {"a": 1}
    assert answer.terminal_response["text"]["format"]["type"] == kind
    assert answer.terminal_response["text"]["format"].get("schema") == form.get("schema")
    constraint = scripted_engine.requests[0][1].constraint
    assert allows(constraint, reply, scripted_engine.tokenizer)
    assert not allows(constraint, reply.replace('{"a": 1}', "one"), scripted_engine.tokenizer)
    wrong = reply.replace('"a": 1', '"b": 1')
    assert allows(constraint, wrong, scripted_engine.tokenizer) is (kind == "json_object")


# --- kinds ---------------------------------------------------------------------------------------


@pytest.mark.requirement("D-56", "API-CUSTOM", "API-NAMESPACE", "CL-TOOLS")
async def test_custom_and_namespaced_tools_keep_their_names(serve: Serve, ask: Ask) -> None:
    tools = [
        {"type": "custom", "name": "apply_patch", "description": "Change files."},
        {"type": "namespace", "name": "home", "description": "The house.", "tools": [OTHER]},
    ]
    reply = (
        '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin\\n"}}\n</tool_call>'
        '\n<tool_call>\n{"name": "home__get_time", "arguments": {"city": "Oslo"}}\n</tool_call>'
    )
    answer = await ask(serve(engine([reply])), tools=tools)
    patch, time = answer.output
    assert (patch["type"], patch["name"], patch["input"]) == (
        "custom_tool_call", "apply_patch", "*** Begin\n",
    )  # fmt: skip
    assert (time["type"], time["name"], time["namespace"]) == ("function_call", "get_time", "home")


@pytest.mark.requirement("GO-3", "CL-HOSTED", "API-HOSTED-IGNORED")
async def test_unsupported_hosted_tools_are_dropped_and_reported(serve: Serve, ask: Ask) -> None:
    scripted_engine = engine(["I cannot."])
    answer = await ask(serve(scripted_engine), tools=[*HOSTED, TOOL])
    assert answer.headers.get("x-antiphon-ignored-tools") in (
        "web_search, image_generation, code_interpreter, mcp",
        None if not answer.headers else "",  # a WebSocket's frames have none
    )
    prompt = scripted_engine.text(scripted_engine.requests[0][0])
    assert "get_weather" in prompt
    assert "web_search" not in prompt
    ignored = answer.terminal_response["ignored_tools"]
    assert [each["type"] for each in ignored] == [tool["type"] for tool in HOSTED]
    assert all(each["reason"].endswith(".") for each in ignored)
    assert [tool["type"] for tool in answer.terminal_response["tools"]] == [
        "web_search", "image_generation", "code_interpreter", "mcp", "function",
    ]  # fmt: skip


@pytest.mark.requirement("API-HOSTED-REFUSED", "TR-8")
async def test_unsupported_tools_can_be_rejected_by_setting(serve: Serve, ask: Ask) -> None:
    server = serve(unavailable_tools="refuse")
    rejection = (await ask(server, tools=[TOOL, HOSTED[0]])).rejection
    assert (rejection["http"], rejection["param"], rejection["code"]) == (
        400, "tools[1]", "unsupported_tool",
    )  # fmt: skip
    assert "'web_search'" in rejection["message"]
    assert (await ask(server, tools=[TOOL])).text == "Hello there!"


@pytest.mark.requirement("API-HOSTED-IGNORED", "API-HOSTED-REFUSED", "API-HOSTED-FORCED")
async def test_unavailable_tool_says_what_turns_it_on(serve: Serve, ask: Ask) -> None:
    reason = "It is not installed. To install it: pip"
    providers = {"web_search": UnavailableTool(reason)}
    server = serve(engine(["No.", "No."]), providers=providers)
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            answer = await ask(server, tools=[HOSTED[0]])
            assert answer.terminal_response["ignored_tools"] == [
                {"type": "web_search", "reason": reason}
            ]
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == [
        f"requests declare web_search, which is ignored: {reason}"
    ]
    forced = await ask(server, tools=[HOSTED[0]], tool_choice={"type": "web_search"})
    refused = await ask(serve(providers=providers, unavailable_tools="refuse"), tools=[HOSTED[0]])
    for answer in (forced, refused):
        assert answer.rejection["message"].endswith(reason)
    listed = (await server.client.get("/antiphon/tools")).json()["data"]
    tools = {each["type"]: (each["available"], each["reason"]) for each in listed}
    assert (tools["web_search"], tools["file_search"]) == ((False, reason), (True, None))
    assert tools["shell"] == tools["code_interpreter"] == (False, "It is off.")
    mcp = McpProvider({"toys": McpEndpoint(url="http://toys.example")}, SessionPool())
    listed = (await serve(providers={"mcp": mcp}).client.get("/antiphon/tools")).json()["data"]
    assert [each.get("server_labels") for each in listed if each["type"] == "mcp"] == [["toys"]]


@pytest.mark.requirement("API-HOSTED-FORCED")
async def test_unsupported_tool_cannot_be_forced(serve: Serve, ask: Ask) -> None:
    rejection = (await ask(serve(), tools=HOSTED, tool_choice={"type": "web_search"})).rejection
    assert (rejection["http"], rejection["param"]) == (400, "tool_choice")


@pytest.mark.requirement("API-SECRETS")
async def test_tool_secrets_are_not_echoed(serve: Serve, ask: Ask) -> None:
    secret = {**HOSTED[3], "authorization": "tok_123", "headers": {"x-key": "k_456"}}
    answer = await ask(serve(), tools=[secret])
    assert "tok_123" not in str(answer.terminal_response)
    assert "k_456" not in str(answer.terminal_response)


@pytest.mark.requirement("CL-SCHEMA-NOISE", "API-TOOL-ECHO")
async def test_schemas_with_unknown_keywords_are_accepted(serve: Serve, ask: Ask) -> None:
    noisy: Json = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Args",
        "type": "object",
        "$defs": {"C": {"type": "string"}},
        "properties": {"city": {"$ref": "#/$defs/C", "encrypted": True}},
    }
    for strict in ({}, {"strict": None}, {"strict": False}):
        tool = {"type": "function", "name": "f", "parameters": noisy, **strict}
        (result,) = (await ask(serve(), tools=[tool])).terminal_response["tools"]
        assert result["parameters"] == noisy
        assert {"description", "parameters", "strict"} <= set(result)


@pytest.mark.requirement("D-71", "API-UNKNOWN-TOOL")
async def test_call_of_an_unknown_tool_is_kept(serve: Serve, ask: Ask) -> None:
    reply = PARIS.replace("get_weather", "get_rich")
    answer = await ask(serve(engine([reply])), tools=[TOOL])
    assert answer.terminal_response["status"] == "completed"
    assert "get_rich" in json.dumps(answer.output)


@pytest.mark.requirement("D-71", "API-BAD-ARGUMENTS")
async def test_arguments_that_are_nearly_json_are_repaired(serve: Serve, ask: Ask) -> None:
    reply = PARIS.replace('{"city": "Paris"}', '{"city": Paris}')
    answer = await ask(serve(engine([reply])), tools=[{**TOOL, "strict": False}])
    assert answer.terminal_response["status"] == "completed"
    (created,) = answer.output
    assert (created["type"], created["name"]) == ("function_call", "get_weather")
    assert created["arguments"] == '{"city": "Paris"}'


@pytest.mark.requirement("API-CALL-COMPLETED")
async def test_response_with_calls_is_completed(serve: Serve, ask: Ask) -> None:
    backend = ScriptedBackend((PARIS,))
    assert (await ask(serve(backend), tools=[TOOL])).terminal_response["status"] == "completed"
    answer = await ask(serve(engine([PARIS])), tools=[TOOL], max_tool_calls=1)
    assert (answer.terminal_response["status"], len(answer.output)) == ("completed", 1)
