"""Every kind of item as the messages that templates take."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.dialects.images import Unreadable
from antiphon.dialects.messages import build_messages
from antiphon.dialects.tools import collect_tools
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Options
from antiphon.stream.kinds import KINDS
from antiphon.wire import items as it
from antiphon.wire.tools import Custom, Function, Namespace

TOOLS = (
    Function(name="weather"),
    Custom(name="patch"),
    Namespace(name="mcp__calc", tools=(Function(name="add"),)),
)
VISIBLE_TOOLS = collect_tools(Options(tools=TOOLS), ())


def read(*items: it.Item, unreadable: Unreadable = "describe", **more: Any) -> list[dict[str, Any]]:
    return build_messages(items, VISIBLE_TOOLS, unreadable, **more)


def user(*parts: it.Part) -> it.Message:
    return it.Message(role="user", content=parts)


def text(words: str) -> it.InputText:
    return it.InputText(text=words)


def assistant(words: str, **more: Any) -> it.Message:
    return it.Message(role="assistant", content=(it.OutputText(text=words),), **more)


def reasoning_done(words: str, **more: Any) -> it.Reasoning:
    return it.Reasoning(content=(it.ReasoningText(text=words),), **more)


def call(id: str, name: str = "weather", arguments: str = "{}", **more: Any) -> it.FunctionCall:
    return it.FunctionCall(call_id=id, name=name, arguments=arguments, **more)


def output(id: str, read_messages: it.ToolOutput = "sunny") -> it.FunctionCallOutput:
    return it.FunctionCallOutput(call_id=id, output=read_messages)


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]


def test_one_turn_is_one_message() -> None:
    read_messages = read(
        user(text("Hi")), reasoning_done("hm"), assistant("Let me see"), call("a"), call("b"),
        output("a", "1"), output("b", "2"), reasoning_done("so"), assistant("Sunny"),
    )  # fmt: skip
    assert [message["role"] for message in read_messages] == [
        "user", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    assert read_messages[1]["reasoning_content"] == "hm"
    assert read_messages[1]["content"] == "Let me see"
    assert calls(read_messages[1]) == [("weather", {}), ("weather", {})]
    assert read_messages[2] == {
        "role": "tool",
        "content": "1",
        "tool_call_id": "a",
        "name": "weather",
    }
    assert (read_messages[4]["reasoning_content"], read_messages[4]["content"]) == ("so", "Sunny")


def test_results_follow_their_calls_in_any_order() -> None:
    read_messages = read(
        call("a"), call("b"), user(text("wait")), output("b", "2"), output("a", "1")
    )
    assert [m.get("content") for m in read_messages] == ["", "1", "2", "wait"]


def test_call_that_was_cut_is_left_out() -> None:
    cut = call("a", arguments='{"ci', status="incomplete")
    assert [m["role"] for m in read(user(text("Hi")), cut, user(text("again")))] == ["user", "user"]
    read_messages = read(user(text("Hi")), assistant("So:"), cut, user(text("again")))
    assert "tool_calls" not in read_messages[1] and read_messages[1]["content"] == "So:"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"city": "Oslo"}', {"city": "Oslo"}),
        ('{"city": "Os', '{"city": "Os'),
        ("[1]", "[1]"),
        ("", ""),
    ],
)
def test_arguments_are_an_object_where_they_are_one(arguments: str, shown: Any) -> None:
    assert calls(read(call("a", arguments=arguments), output("a"))[0]) == [("weather", shown)]


def test_tools_have_the_names_in_the_prompt() -> None:
    read_messages = read(
        call("a", "add", namespace="mcp__calc"),
        it.CustomToolCall(call_id="b", name="patch", input="*** Begin"),
        output("a", "3"),
        it.CustomToolCallOutput(call_id="b", output="done"),
    )
    assert calls(read_messages[0]) == [("mcp__calc__add", {}), ("patch", {"input": "*** Begin"})]
    assert [m["name"] for m in read_messages[1:]] == ["mcp__calc__add", "patch"]


def test_outputs_may_be_parts() -> None:
    parts = (text("one"), it.InputImage(image_url="data:image/png;base64,AA"))
    read_messages = read(call("a"), output("a", parts))
    assert read_messages[1]["content"] == "one\n[image omitted: this model cannot read it]"


def test_output_without_its_call_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="No tool call found for function call output"):
        read(output("a"))


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (it.Refusal(refusal="No."), "No."),
        (it.InputImage(file_id="f"), "[image omitted: this model cannot read it]"),
        (it.InputFile(filename="a.pdf"), "[file 'a.pdf' omitted: this model cannot read it]"),
        (it.InputVideo(video_url="u"), "[video omitted: this model cannot read it]"),
        (it.InputAudio(input_audio={}), "[audio omitted: this model cannot read it]"),
        (
            it.InputFile(
                filename="a.md",
                file_data="data:text/markdown;base64," + base64.b64encode(b"# Hi").decode(),
            ),
            "[file 'a.md']\n# Hi",
        ),
        (it.InputFile(file_data="data:text/plain,a%20b"), "[file]\na b"),
        (
            it.InputFile(file_data=base64.b64encode(b"%PDF\0\xff").decode()),
            "[file omitted: this model cannot read it]",
        ),
    ],
)
def test_content_parts_become_template_parts(part: it.Part, shown: str) -> None:
    assert read(user(text("See"), part))[0]["content"] == f"See\n{shown}"


def test_unsupported_content_is_refused_with_its_path() -> None:
    image = it.InputImage(image_url="data:image/png;base64,AA")
    with pytest.raises(InvalidRequest) as refused:
        read(user(text("Hi")), user(text("See"), image), unreadable="refuse")
    assert refused.value.param == "input[1].content[1]"
    with pytest.raises(InvalidRequest) as refused:
        read(call("a"), output("a", (image,)), unreadable="refuse")
    assert refused.value.param == "input[1].output[0]"


def test_paths_count_from_the_requests_own_items() -> None:
    for past_count, param in ((1, "input[0]"), (2, "previous_response_id")):
        with pytest.raises(InvalidRequest) as refused:
            read(user(text("Hi")), it.CompactionTrigger(), past_count=past_count)
        assert refused.value.param == param


def test_unknown_roles_become_user_messages() -> None:
    roles = ("system", "developer", "user", "critic", "tool")
    read_messages = read(*(it.Message(role=role, content=(text("x"),)) for role in roles))
    assert [m["role"] for m in read_messages] == ["system", "developer", "user", "user", "user"]


def test_reasoning_without_text_is_left_out() -> None:
    assert read(it.Reasoning(encrypted_content="x"), it.Reasoning(), user(text("Hi")))[0] == {
        "role": "user",
        "content": "Hi",
    }


@pytest.mark.parametrize("status", ["in_progress", "incomplete"])
def test_incomplete_last_answer_stays_open(status: Any) -> None:
    assert read(user(text("Hi")), assistant("He", status=status))[-1]["open"] is True
    assert read(user(text("Hi")), reasoning_done("hm", status=status))[-1]["open"] is True
    closed = read(assistant("He", status=status), user(text("Hi")))
    assert not any(message.get("open") for message in closed)
    assert not read(user(text("Hi")), assistant("Hello"))[-1].get("open")


# --- kinds ---------------------------------------------------------------------------------------


def test_only_these_kinds_have_no_form_in_prompts() -> None:
    refused = {
        it.AgentMessage,
        it.Compaction,
        it.CompactionTrigger,
        it.ConfigurationUpdate,
        it.ItemReference,
    }
    by_their_class = {it.Message, it.Reasoning, it.McpApprovalResponse}
    without_form = {
        cls for cls, kind in KINDS.items() if not (kind.hidden or kind.call or kind.result)
    }
    assert without_form == refused | by_their_class


@pytest.mark.parametrize(
    "item",
    [
        it.Compaction(encrypted_content="x"),
        it.CompactionTrigger(),
        it.ConfigurationUpdate(),
        it.ItemReference(id="msg_1"),
    ],
)
def test_unsupported_items_are_refused_with_their_path(item: it.Item) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(user(text("Hi")), item)
    assert refused.value.param == "input[1]"


@pytest.mark.parametrize(
    ("items", "name", "arguments", "result"),
    [
        (
            [it.WebSearchCall(id="w", action={"type": "search", "query": "q"})],
            "web_search",
            {"type": "search", "query": "q"},
            '{"status": "completed"}',
        ),
        (
            [it.FileSearchCall(id="f", queries=("q",), results=({"text": "t"},))],
            "file_search",
            {"queries": ("q",)},
            '{"status": "completed", "results": [{"text": "t"}]}',
        ),
        (
            [it.CodeInterpreterCall(id="c", container_id="k", code="1+1", status="failed")],
            "python",
            {"input": "1+1"},
            '{"status": "failed"}',
        ),
        (
            [it.ImageGenerationCall(id="i", result="AAAA", revised_prompt="a cat")],
            "image_generation",
            {"prompt": "a cat"},
            '{"status": "completed"}',
        ),
        (
            [it.McpCall(id="m", server_label="s", name="f", arguments='{"a": 1}', output="ok")],
            "s__f",
            {"a": 1},
            "ok",
        ),
        (
            [it.McpCall(id="m", server_label="s", name="f", arguments="{}", error="no")],
            "s__f",
            {},
            "Error: no",
        ),
        (
            [
                it.ComputerCall(call_id="c", action={"type": "click"}),
                it.ComputerCallOutput(call_id="c", output=it.ComputerScreenshot()),
            ],
            "computer",
            {"action": {"type": "click"}},
            "[image omitted: this model cannot read it]",
        ),
        (
            [
                it.LocalShellCall(call_id="c", action={"command": ["ls"]}),
                it.LocalShellCallOutput(call_id="c", output="a.txt"),
            ],
            "local_shell",
            {"command": ["ls"]},
            "a.txt",
        ),
        (
            [
                it.ShellCall(call_id="c", action={"commands": ["ls"]}),
                it.ShellCallOutput(call_id="c", output=({"stdout": "a"},)),
            ],
            "shell",
            {"commands": ["ls"]},
            '[{"stdout": "a"}]',
        ),
        (
            [
                it.ApplyPatchCall(call_id="c", operation={"type": "delete_file"}),
                it.ApplyPatchCallOutput(call_id="c", status="failed"),
            ],
            "apply_patch",
            {"type": "delete_file"},
            "failed",
        ),
        (
            [
                it.ToolSearchCall(call_id="c", arguments={"query": "q"}, execution="client"),
                it.ToolSearchOutput(call_id="c", tools=(Function(name="found"),)),
            ],
            "tool_search",
            {"query": "q"},
            '{"type": "function", "function": {"name": "found", "description": "", "parameters":'
            ' {"type": "object", "properties": {}}}}',
        ),
        (
            [
                it.Program(call_id="c", code="f()", fingerprint="x"),
                it.ProgramOutput(call_id="c", result="1"),
            ],
            "program",
            {"input": "f()"},
            "1",
        ),
        (
            [
                it.McpApprovalRequest(id="r", server_label="s", name="f", arguments="{}"),
                it.McpApprovalResponse(approval_request_id="r", approve=False, reason="too risky"),
            ],
            "s__f",
            {},
            "The user did not allow this call: too risky",
        ),
    ],
)
def test_hosted_and_client_tools_become_calls_and_results(
    items: Sequence[it.Item], name: str, arguments: Any, result: str
) -> None:
    question, answered = read(*items)
    assert calls(question) == [(name, arguments)]
    assert (answered["role"], answered["content"]) == ("tool", result)


def test_approved_mcp_call_is_shown_without_its_approval() -> None:
    read_messages = read(
        it.McpListTools(server_label="s", tools=()),
        it.AdditionalTools(tools=()),
        it.McpApprovalRequest(id="r", server_label="s", name="f", arguments="{}"),
        it.McpApprovalResponse(approval_request_id="r", approve=True),
        it.McpCall(id="m", server_label="s", name="f", arguments="{}", output="ok"),
        it.ToolSearchOutput(tools=(), call_id=None),
    )
    assert [m["role"] for m in read_messages] == ["assistant", "tool"]
