"""Prompts for gpt-oss: token for token what the format's library writes, and what was sampled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from openai_harmony import (
    Author,
    DeveloperContent,
    HarmonyEncoding,
    ReasoningEffort,
    RenderConversationConfig,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
    ToolNamespaceConfig,
)
from openai_harmony import (
    Conversation as Written,
)
from openai_harmony import (
    Message as Line,
)

from antiphon.dialects.harmony.dialect import HarmonyDialect
from antiphon.dialects.harmony.parser import CONTROL_TOKENS
from antiphon.errors import InvalidRequest, SetupError
from antiphon.inference.conversation import Conversation, Options, PromptTokens, ToolChoice
from antiphon.inference.tokens import Chunk
from antiphon.stream.deltas import Delta, Open, Text
from antiphon.testing.delta_reader import read_reply
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.tools.client_tools.provider import shell_function
from antiphon.wire import items as it
from antiphon.wire.extensions import Guide
from antiphon.wire.response import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ReasoningConfig,
    TextConfig,
)
from antiphon.wire.tools import Custom, Function, Namespace
from tests.dialects.gpt_oss import CARD, dialect, encoding, tokenizer
from tests.hypothesis_settings import examples

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Function(name="get_weather", description="The weather.", parameters=CITY)
NOW = Function(name="now")


def user(text: str) -> it.Message:
    return it.Message(role="user", content=(it.InputText(text=text),))


def instruction(text: str, role: Any = "developer") -> it.Message:
    return it.Message(role=role, content=(it.InputText(text=text),))


def answer(*texts: str, **fields: Any) -> it.Message:
    parts = tuple(it.OutputText(text=text) for text in texts)
    return it.Message(role="assistant", content=parts, **fields)


def reasoning_done(text: str, **fields: Any) -> it.Reasoning:
    return it.Reasoning(content=(it.ReasoningText(text=text),), **fields)


def function_call(call_id: str = "c1", arguments: str = '{"city":"Oslo"}') -> it.FunctionCall:
    return it.FunctionCall(call_id=call_id, name="get_weather", arguments=arguments)


def result(output: Any = "sunny", call_id: str = "c1") -> it.FunctionCallOutput:
    return it.FunctionCallOutput(call_id=call_id, output=output)


def ids(
    *items: it.Item,
    stored: PromptTokens | None = None,
    instructions: str | None = None,
    **option_fields: Any,
):  # type: ignore[no-untyped-def]
    conversation = Conversation(items=items, instructions=instructions, stored_tokens=stored)
    return dialect().render(conversation, Options(**option_fields)).prompt.ids


def decoded(found: Sequence[int]) -> str:
    return encoding().decode(found)


# --- as the library writes it --------------------------------------------------------------------


def system(effort: ReasoningEffort = ReasoningEffort.MEDIUM) -> Line:
    content = SystemContent(reasoning_effort=effort, conversation_start_date="2026-07-09")
    return Line.from_role_and_content(Role.SYSTEM, content)


def developer(instructions: str | None, *tools: ToolDescription) -> Line:
    content = DeveloperContent(instructions=instructions)
    if tools:
        content.with_function_tools(tools)
    return Line.from_role_and_content(Role.DEVELOPER, content)


def assistant_line(text: str, channel: str) -> Line:
    return Line.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)


def user_line(text: str) -> Line:
    return Line.from_role_and_content(Role.USER, text)


def calling(name: str, arguments: str) -> Line:
    line = assistant_line(arguments, "commentary").with_recipient(f"functions.{name}")
    return line.with_content_type("<|constrain|>json")


def answering(name: str, text: str) -> Line:
    line = Line.from_author_and_content(Author.new(Role.TOOL, f"functions.{name}"), text)
    return line.with_channel("commentary").with_recipient("assistant")


def reference_ids(*lines: Line) -> tuple[int, ...]:
    return tuple(
        encoding().render_conversation_for_completion(
            Written.from_messages(lines),
            Role.ASSISTANT,
            RenderConversationConfig(auto_drop_analysis=False),
        )
    )


WEATHER_TOOL = ToolDescription.new("get_weather", "The weather.", CITY)
USES = (
    user_line("Oslo?"),
    calling("get_weather", '{"city":"Oslo"}'),
    answering("get_weather", "sunny"),
)


@pytest.mark.requirement("TR-7", "VN-31")
def test_prompt_of_one_message_equals_the_reference() -> None:
    assert ids(user("Hi")) == reference_ids(system(), user_line("Hi"))
    assert decoded(ids(user("Hi"))).startswith(
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: 2026-07-09\n\nReasoning: medium\n\n"
        "# Valid channels: analysis, commentary, final."
    )


@pytest.mark.requirement("D-50", "TR-7", "VN-31")
def test_instructions_at_the_beginning_form_one_developer_message() -> None:
    items = (
        instruction("First.", "system"),
        instruction("Second."),
        user("Hi"),
        instruction("Then."),
        answer("Yes."),
        instruction("Last.", "system"),
    )
    assert ids(*items, instructions="Be kind.") == reference_ids(
        system(),
        developer("Be kind.\n\nFirst.\n\nSecond."),
        user_line("Hi"),
        developer("Then."),
        assistant_line("Yes.", "final"),
        developer("Last."),
    )


def test_developer_message_keeps_its_place_and_the_prefix() -> None:
    before = ids(user("Hi"))
    stored_tokens = prompt_tokens(before, "<|channel|>final<|message|>Hello!<|return|>")
    talk = (user("Hi"), answer("Hello!"), instruction("Speak Greek."))
    second = ids(*talk, stored=stored_tokens)
    assert second[: len(stored_tokens.ids) - 1] == stored_tokens.ids[:-1]
    again = PromptTokens((*second, *sampled("<|channel|>final<|message|>Γεια!<|return|>")), "f")
    third = ids(*talk, answer("Γεια!"), user("Go on."), stored=again)
    assert third[: len(again.ids) - 1] == again.ids[:-1]


def test_tools_are_shown_and_called() -> None:
    assert ids(user("Oslo?"), function_call(), result(), tools=(WEATHER,)) == reference_ids(
        system(), developer(None, WEATHER_TOOL), *USES
    )
    assert "'functions'.<|end|>" in decoded(ids(user("Oslo?"), tools=(WEATHER,)))
    nothing = ToolDescription.new("now", "", None)
    assert ids(user("Hi"), tools=(NOW,), instructions="Go.") == reference_ids(
        system(), developer("Go.", nothing), user_line("Hi")
    )


def test_every_message_kind_is_rendered() -> None:
    items = (
        user("Oslo?"),
        reasoning_done("Let me look."),
        answer("One moment.", phase="commentary"),
        function_call(),
        result(),
        it.CustomToolCall(call_id="c2", name="sh", input='ls "a"\n'),
        it.CustomToolCallOutput(call_id="c2", output="a\nb"),
        it.McpCall(id="m1", name="add", server_label="calc", arguments='{"a":1}', output="1"),
        it.WebSearchCall(id="w1", action={"type": "search", "query": "q"}, status="completed"),
    )
    assert ids(*items) == reference_ids(
        system(),
        user_line("Oslo?"),
        assistant_line("Let me look.", "analysis"),
        assistant_line("One moment.", "commentary"),
        *USES[1:],
        calling("sh", '{"input": "ls \\"a\\"\\n"}'),
        answering("sh", "a\nb"),
        calling("calc__add", '{"a":1}'),
        answering("calc__add", "1"),
        calling("web_search", '{"type": "search", "query": "q"}'),
        answering("web_search", '{"status": "completed"}'),
    )


@pytest.mark.requirement("D-52")
def test_outputs_that_are_lists() -> None:
    listed = (it.InputText(text="sunny"), it.InputText(text="21 °C"))
    assert ids(user("Oslo?"), function_call(), result(listed)) == reference_ids(
        system(), *USES[:2], answering("get_weather", "sunny\n21 °C")
    )


@pytest.mark.requirement("D-51")
def test_images_leave_a_note_or_are_refused() -> None:
    image = it.InputImage(image_url="data:image/png;base64,AAAA")
    message = it.Message(role="user", content=(it.InputText(text="What is it?"), image))
    conversation = Conversation(items=(message,))
    described = dialect(unreadable="describe").render(conversation, Options())
    assert "[image omitted" in decoded(described.prompt.ids)
    with pytest.raises(InvalidRequest) as caught:
        dialect().render(conversation, Options())
    assert caught.value.param == "input[0].content[1]"


def test_results_stand_behind_their_calls() -> None:
    items = (user("Oslo?"), function_call("c1"), function_call("c2"), function_call("c3"))
    found = ids(*items, result("two", "c2"), result("one", "c1"))
    call = calling("get_weather", '{"city":"Oslo"}')
    assert found == reference_ids(
        system(),
        user_line("Oslo?"),
        *(call, answering("get_weather", "one")),
        *(call, answering("get_weather", "two")),
    )


@pytest.mark.requirement("VN-35", "D-48", "GO-7")
def test_thinking_stays_within_a_tool_loop_only() -> None:
    items = (
        *(user("Hi"), reasoning_done("Greet."), answer("Hello!"), user("Oslo?")),
        *(reasoning_done("Look."), function_call(), result()),
    )
    loop = (
        user_line("Hi"),
        assistant_line("Hello!", "final"),
        USES[0],
        assistant_line("Look.", "analysis"),
        *USES[1:],
    )
    assert ids(*items) == reference_ids(system(), *loop)
    after = (*items, reasoning_done("So."), answer("Sunny."), user("Thanks"))
    assert ids(*after) == reference_ids(
        system(), *loop[:3], *USES[1:], assistant_line("Sunny.", "final"), user_line("Thanks")
    )


def test_reasoning_of_all_turns_is_shown_on_request() -> None:
    items = (user("Hi"), reasoning_done("Greet."), answer("Hello!"), user("Thanks"))
    turns = (
        user_line("Hi"),
        assistant_line("Greet.", "analysis"),
        assistant_line("Hello!", "final"),
        user_line("Thanks"),
    )
    assert ids(*items, reasoning=ReasoningConfig(context="all_turns")) == reference_ids(
        system(), *turns
    )
    assert dialect().reasoning_retention(Options()) == "current_turn"
    everything = Options(reasoning=ReasoningConfig(context="all_turns"))
    assert dialect().reasoning_retention(everything) == "all_turns"
    for context in ("auto", "current_turn"):
        found = ids(*items, reasoning=ReasoningConfig(context=context))  # type: ignore[arg-type]
        assert found == reference_ids(system(), turns[0], *turns[2:])


EFFORTS = {
    None: ReasoningEffort.MEDIUM,
    **dict.fromkeys(("none", "minimal", "low"), ReasoningEffort.LOW),
    "medium": ReasoningEffort.MEDIUM,
    **dict.fromkeys(("high", "xhigh", "max"), ReasoningEffort.HIGH),
}


@pytest.mark.requirement("D-63")
@pytest.mark.parametrize(("effort", "level"), EFFORTS.items())
def test_effort_levels_are_rendered(effort: Any, level: ReasoningEffort) -> None:
    found = ids(user("Hi"), reasoning=ReasoningConfig(effort=effort))
    assert found == reference_ids(system(level), user_line("Hi"))


def test_settings_and_request_set_template_variables() -> None:
    created = dialect(settings={"model_identity": "You are Anton.", "reasoning_effort": "high"})

    def head(**option_fields: Any) -> str:
        conversation = Conversation(items=(user("Hi"),))
        return decoded(created.render(conversation, Options(**option_fields)).prompt.ids)

    assert "You are Anton.\n" in head() and "Reasoning: high" in head()
    assert "Reasoning: low" in head(reasoning=ReasoningConfig(effort="minimal"))
    assert "Reasoning: low" in head(template={"reasoning_effort": "low"})
    assert "cutoff: 2025-01" in head(template={"knowledge_cutoff": "2025-01"})
    assert "date: 2001-02-03" in head(template={"conversation_start_date": "2001-02-03"})


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("builtin_tools", ["python"], "is not a setting of gpt-oss"),
        ("reasoning_effort", "huge", "must be one of low, medium, high"),
        ("model_identity", 5, "must be a text"),
    ],
)
def test_reserved_variables_are_refused(name: str, value: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        ids(user("Hi"), template={name: value})
    assert caught.value.param == f"chat_template_kwargs.{name}"
    with pytest.raises(SetupError, match=f"gpt-oss: template_kwargs.{name} {why}"):
        dialect(settings={name: value})


def test_response_format_stands_last() -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}}
    form = JsonSchemaFormat(name="person", schema=schema, description="Who\nit is.")
    shape = TextContent(
        text=f"\n\n# Response Formats\n\n## person\n\n// Who it is.\n{json.dumps(schema)}"
    )
    expected = developer("Be kind.", WEATHER_TOOL)
    expected.content.append(shape)
    assert ids(
        user("Hi"), tools=(WEATHER,), text=TextConfig(format=form), instructions="Be kind."
    ) == reference_ids(system(), expected, user_line("Hi"))
    alone = decoded(ids(user("Hi"), text=TextConfig(format=JsonObjectFormat())))
    assert '<|start|>developer<|message|># Response Formats\n\n## json_object\n\n{"type"' in alone


def test_verbosity_and_guide_are_in_the_prompt() -> None:
    text = decoded(ids(user("Hi"), text=TextConfig(verbosity="low"), instructions="Be kind."))
    assert "# Instructions\n\nBe kind.\n\nKeep your answers short.<|end|>" in text
    guide = Guide(syntax="regex", definition="[ab]", path="structured_outputs.regex")
    assert "matches this regular expression:\n[ab]<|end|>" in decoded(ids(user("Hi"), guide=guide))


def test_incomplete_answer_is_continued() -> None:
    begun = (user("Hi"), reasoning_done("Greet."), answer("Hello", status="incomplete"))
    rendered = dialect().render(Conversation(items=begun), Options())
    assert decoded(rendered.prompt.ids).endswith(
        "analysis<|message|>Greet.<|end|><|start|>assistant<|channel|>final<|message|>Hello"
    )
    deltas = list(rendered.parser.feed(Chunk(tuple(encoding().encode(", you")))))
    assert deltas[-1].text == ", you"  # type: ignore[union-attr]
    thinking = (user("Hi"), reasoning_done("Gre", status="incomplete"))
    assert dialect().render(Conversation(items=thinking), Options()).parser.is_thinking
    nothing = (user("Hi"), answer("Hello"), it.Reasoning(status="incomplete"))
    assert decoded(ids(*nothing)).endswith("Hello<|end|><|start|>assistant")


def test_turn_end_tokens_are_listed() -> None:
    rendered = dialect().render(Conversation(items=(user("Hi"),)), Options())
    special = tokenizer().special
    assert rendered.stop_ids == (special["<|return|>"], special["<|call|>"])


@pytest.mark.parametrize(
    ("choice", "end"),
    [
        (ToolChoice("auto"), "<|end|><|start|>assistant<|channel|>final<|message|>"),
        (ToolChoice("required"), "<|end|><|start|>assistant"),
    ],
)
def test_used_up_thinking_budget_closes_the_reasoning(choice: ToolChoice, end: str) -> None:
    options = Options(thinking_budget=5, tools=(WEATHER,), tool_choice=choice)
    rendered = dialect().render(Conversation(items=(user("Hi"),)), options)
    assert decoded(rendered.reasoning_end_ids) == end
    if choice.must_call:
        assert rendered.answer_constraint is not None and rendered.answer_constraint.needed


# --- the tools gpt-oss was trained with ----------------------------------------------------------

PYTHON = Custom(name="python", description="Runs code.")
SHELL = shell_function("Runs commands.")
BROWSER = Namespace(
    name="browser",
    description="Reads the web.",
    tools=(Function(name="search", description="Searches.", parameters=CITY),),
)


@pytest.mark.requirement("TR-7", "VN-31")
def test_builtin_tools_are_in_the_system_message() -> None:
    search = ToolDescription.new("search", "Searches.", CITY)
    content = SystemContent(
        reasoning_effort=ReasoningEffort.MEDIUM, conversation_start_date="2026-07-09"
    )
    content.with_tools(ToolNamespaceConfig(name="python", description="Runs code.", tools=[]))
    content.with_tools(ToolNamespaceConfig(name="browser", tools=[search]))
    head = Line.from_role_and_content(Role.SYSTEM, content)
    assert ids(user("Hi"), tools=(PYTHON, BROWSER)) == reference_ids(head, user_line("Hi"))
    assert "'functions'" not in decoded(ids(user("Hi"), tools=(PYTHON, BROWSER)))
    both = ids(user("Hi"), tools=(PYTHON, WEATHER, BROWSER))
    assert both == reference_ids(head, developer(None, WEATHER_TOOL), user_line("Hi"))


def test_builtin_tools_are_called_in_reasoning() -> None:
    def own(line: Line, recipient: str) -> Line:
        return line.with_channel("analysis").with_recipient(recipient)

    def replied(name: str, text: str) -> Line:
        return own(Line.from_author_and_content(Author.new(Role.TOOL, name), text), "assistant")

    items = (
        user("Hi"),
        it.CustomToolCall(call_id="c1", name="python", input='print("1")'),
        it.CustomToolCallOutput(call_id="c1", output="1"),
        it.FunctionCall(call_id="c2", name="search", namespace="browser", arguments='{"city":"x"}'),
        it.FunctionCallOutput(call_id="c2", output="found"),
    )
    found = ids(*items, tools=(PYTHON, BROWSER))
    lines = (
        own(assistant_line('print("1")', "analysis"), "python").with_content_type("code"),
        replied("python", "1"),
        own(assistant_line('{"city":"x"}', "analysis"), "browser.search").with_content_type("code"),
        replied("browser.search", "found"),
    )
    tail = reference_ids(system(), user_line("Hi"), *lines)[
        len(reference_ids(system(), user_line("Hi"))) - 2 :
    ]
    assert found[-len(tail) :] == tail
    assert decoded(ids(*items, answer("Done."), user("Go on."), tools=(PYTHON, BROWSER))).endswith(
        "Hi<|end|><|start|>assistant<|channel|>final<|message|>Done.<|end|>"
        "<|start|>user<|message|>Go on.<|end|><|start|>assistant"
    )
    prompt = ids(user("Hi"), tools=(PYTHON, BROWSER))
    stored_tokens = prompt_tokens(
        prompt, '<|channel|>analysis to=python code<|message|>print("1")<|call|>'
    )
    assert (
        ids(*items, tools=(PYTHON, BROWSER), stored=stored_tokens)[: len(stored_tokens.ids)]
        == stored_tokens.ids
    )


def test_code_of_the_builtin_python_tool_is_plain_text() -> None:
    conversation = Conversation(items=(user("Hi"),))
    parser = dialect().render(conversation, Options(tools=(PYTHON, BROWSER))).parser
    code = '{"a": "b\\n"}'
    text = f"<|channel|>analysis to=python code<|message|>{code}<|call|>"
    _, opened, written, _ = parser.feed(Chunk(sampled(text)))
    assert isinstance(opened, Open) and isinstance(opened.item, it.CustomToolCall)
    assert isinstance(written, Text) and written.text == code
    text = '<|start|>assistant<|channel|>analysis to=browser.search<|message|>{"city":"x"}<|call|>'
    _, opened, written, _ = parser.feed(Chunk(sampled(text)))
    assert isinstance(opened, Open) and isinstance(opened.item, it.FunctionCall)
    assert (opened.item.name, opened.item.namespace) == ("search", "browser")
    assert isinstance(written, Text) and written.text == '{"city":"x"}'


def test_shell_is_the_container_that_the_model_was_trained_with() -> None:
    action = {"commands": ["cd /x", "ls"], "timeout_ms": 1500, "max_output_length": None}
    output = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    items = (
        user("Hi"),
        it.ShellCall(call_id="c1", action=action),
        it.ShellCallOutput(call_id="c1", output=(output,)),
    )
    text = decoded(ids(*items, tools=(SHELL, WEATHER)))
    system_message, rest = text.split("<|end|>", 1)
    assert "## container\n\nnamespace container {\n\n// Runs commands.\n" in system_message
    assert "type exec = (_: {\ncmd: string[],\nworkdir?: string," in system_message
    assert "type get_weather" in rest and "shell" not in text
    call = '{"cmd": ["bash", "-lc", "cd /x\\nls"], "timeout": 2}'
    assert f" to=container.exec<|channel|>analysis code<|message|>{call}<|call|>" in rest
    assert "<|start|>container.exec to=assistant<|channel|>analysis<|message|>" in rest


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"cmd":["bash","-lc","ls | wc"]}', {"commands": ["ls | wc"]}),
        ('{"cmd":["echo","a b"],"timeout":2.5}', {"commands": ["echo 'a b'"], "timeout_ms": 2500}),
        (
            '{"cmd":"ls","workdir":"/a b","env":{"A":"1 2","B;":"x","C":[]},"user":"root"}',
            {"commands": ["cd '/a b' || exit\nexport A='1 2'\nls"]},
        ),
        ('{"commands":["ls"]}', {"commands": ["ls"]}),
        ('{"cmd":"\\ud83d","timeout":true}', {"commands": ["\ufffd"]}),
    ],
)
def test_calls_of_the_container_are_calls_of_the_shell(written: str, expected: Any) -> None:
    parser = dialect().render(Conversation(items=(user("Hi"),)), Options(tools=(SHELL,))).parser
    text = f"<|channel|>analysis to=container.exec code<|message|>{written}<|call|>"
    _, opened, arguments, _ = parser.feed(Chunk(sampled(text)))
    assert isinstance(opened, Open) and isinstance(opened.item, it.FunctionCall)
    assert opened.item.name == "shell" and isinstance(arguments, Text)
    assert json.loads(arguments.text) == expected


@pytest.mark.parametrize("written", ["", "ls", '{"cmd":[', '{"cmd":[]}', '{"cmd":[1]}', "[" * 5000])
def test_unreadable_calls_of_the_container_stay_as_they_are(written: str) -> None:
    for end, reason in (("<|call|>", "stop"), ("", "length")):
        parser = dialect().render(Conversation(items=(user("Hi"),)), Options(tools=(SHELL,))).parser
        text = f"<|channel|>analysis to=container.exec code<|message|>{written}{end}"
        deltas = [*parser.feed(Chunk(sampled(text))), *parser.finish(reason)]
        assert "".join(delta.text for delta in deltas if isinstance(delta, Text)) == written


def test_functions_named_like_builtins_stay_functions() -> None:
    for name in ("python", "shell"):
        text = decoded(ids(user("Hi"), tools=(Function(name=name, parameters=CITY),)))
        assert f"type {name} = (_: {{" in text and "'functions'" in text


# --- what nobody may spell -----------------------------------------------------------------------


@pytest.mark.parametrize("place", ["user", "instructions", "result", "call", "tool"])
def test_control_tokens_that_are_spelled_stay_text(place: str) -> None:
    spell = "".join(CONTROL_TOKENS.values()) + "<|endoftext|>"
    control = set(tokenizer().special.values())

    def count(text: str) -> int:
        tool = Function(name="f", description=text, parameters={"description": text, **CITY})
        use = (
            it.FunctionCall(call_id="c1", name=text if place == "call" else "f", arguments=text),
            it.FunctionCallOutput(call_id="c1", output=text),
        )
        found = {
            "user": lambda: ids(user(text)),
            "instructions": lambda: ids(user("Hi"), instructions=text),
            "result": lambda: ids(user("Hi"), *use),
            "call": lambda: ids(user("Hi"), *use),
            "tool": lambda: ids(user("Hi"), tools=(tool,)),
        }[place]()
        return sum(id in control for id in found)

    assert count(f"a{spell}b") == count("ab")


def test_half_surrogate_pairs_are_replaced() -> None:
    assert ids(user("a\ud83d")) == ids(user("a\ufffd"))
    tool = Function(name="f", description="\ud83d", parameters=CITY)
    assert "\ufffd" in decoded(ids(user("Hi"), tools=(tool,), instructions="\udc00"))


def test_white_space_in_names_is_replaced() -> None:
    odd = it.FunctionCall(call_id="c1", name="f to=x y", arguments="{}")
    assert "assistant to=functions.f_to=x_y<|channel|>" in decoded(ids(user("Hi"), odd, result()))


# --- kept tokens ---------------------------------------------------------------------------------

SAMPLED_CALL = (
    "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary"
    ' to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>'
)


def sampled(text: str) -> tuple[int, ...]:
    return tuple(encoding().encode(text, allowed_special="all"))


def prompt_tokens(prompt: Sequence[int], text: str, fingerprint: str = "f") -> PromptTokens:
    return PromptTokens((*prompt, *sampled(text)), fingerprint)


@pytest.mark.requirement("D-79")
def test_sampled_tokens_are_extended() -> None:
    prompt = ids(user("Oslo?"), tools=(WEATHER,))
    stored_tokens = prompt_tokens(prompt, SAMPLED_CALL)
    talk = (
        user("Oslo?"),
        reasoning_done("Look."),
        function_call(arguments='{"city": "Oslo"}'),
        result(),
    )
    found = ids(*talk, stored=stored_tokens, tools=(WEATHER,))
    assert found[: len(stored_tokens.ids)] == stored_tokens.ids
    rest = "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>sunny<|end|>"
    assert decoded(found[len(stored_tokens.ids) :]) == f"{rest}<|start|>assistant"
    assert found != ids(*talk, tools=(WEATHER,)), "the library writes it otherwise"


SAME: dict[str, tuple[str, tuple[it.Item, ...]]] = {
    "a turn that is over ends as a message": (
        "<|channel|>final<|message|>Hello!<|return|>",
        (answer("Hello!"),),
    ),
    "an answer without a channel": ("<|message|>Hello!<|return|>", (answer("Hello!"),)),
    "stray words in a header": (
        "<|channel|>final so<|message|>Hello!<|return|>",
        (answer("Hello!"),),
    ),
    "an answer that was cut": ("<|channel|>final<|message|>Hel", (answer("Hel"),)),
    "a preamble": (
        "<|channel|>commentary<|message|>Wait.<|end|>",
        (answer("Wait.", phase="commentary"),),
    ),
    "arguments that were read otherwise": (
        '<|channel|>commentary to=functions.get_weather<|message|>{ "city":"Oslo" }<|call|>',
        (function_call(), result()),
    ),
    "a custom tool": (
        '<|channel|>commentary to=functions.sh<|message|>{"input":"ls"}<|call|>',
        (
            it.CustomToolCall(call_id="c1", name="sh", input="ls"),
            it.CustomToolCallOutput(call_id="c1", output="a"),
        ),
    ),
}


@pytest.mark.parametrize(("text", "items"), SAME.values(), ids=SAME)
def test_equivalent_headers_are_preserved(text: str, items: tuple[it.Item, ...]) -> None:
    prompt = ids(user("Hi"))
    stored_tokens = prompt_tokens(prompt, text)
    found = ids(user("Hi"), *items, user("Go on."), stored=stored_tokens)
    body = text.removesuffix("<|return|>").removesuffix("<|end|>")
    end = "" if text.endswith("<|call|>") else "<|end|>"
    assert decoded(found).startswith(f"{decoded(prompt)}{body}{end}<|start|>")
    over = len(sampled(body))
    assert found[: len(prompt) + over] == (*prompt, *sampled(body))
    assert found[-len(reference_ids(user_line("Go on."))) :] == reference_ids(user_line("Go on."))


OTHERS: dict[str, tuple[str, tuple[it.Item, ...]]] = {
    "another text": ("<|channel|>final<|message|>Hello!<|return|>", (answer("Bye!"),)),
    "another channel": (
        "<|channel|>analysis<|message|>Hello!<|end|>",
        (answer("Hello!"),),
    ),
    "another tool": (
        '<|channel|>commentary to=functions.now<|message|>{"city":"Oslo"}<|call|>',
        (function_call(), result()),
    ),
    "no call": (
        '<|channel|>final<|message|>{"city":"Oslo"}<|return|>',
        (function_call(), result()),
    ),
    "thinking that is not shown again": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"
        "Hello!<|return|>",
        (reasoning_done("Hm."), answer("Hello!")),
    ),
    "tokens in the text": (
        "<|channel|>final<|message|>Hello<|constrain|>!<|return|>",
        (answer("Hello!"),),
    ),
    "tokens in the header": (
        "<|channel|>final<|endoftext|><|message|>Hello!<|return|>",
        (answer("Hello!"),),
    ),
    "no header": ("Hello!<|return|>", (answer("Hello!"),)),
}


@pytest.mark.parametrize(("text", "items"), OTHERS.values(), ids=OTHERS)
def test_different_messages_are_rendered_again(text: str, items: tuple[it.Item, ...]) -> None:
    talk = (user("Hi"), *items, user("Go on."))
    assert ids(*talk, stored=prompt_tokens(ids(user("Hi")), text)) == ids(*talk)


def test_kept_tokens_of_another_head_or_tokenizer_are_left_out() -> None:
    text = "<|message|>Hello!<|return|>"
    talk = (user("Hi"), answer("Hello!"), user("Go on."))
    for stored_tokens in (
        prompt_tokens(ids(user("Hi"), instructions="Be kind."), text),
        prompt_tokens(ids(user("Hi")), text, "another"),
        prompt_tokens(ids(user("Ho")), text),
    ):
        assert ids(*talk, stored=stored_tokens) == ids(*talk)


def test_each_turn_extends_the_previous_one() -> None:
    talk: tuple[it.Item, ...] = ()
    stored_tokens: PromptTokens | None = None
    for turn in range(4):
        talk = (*talk, user(f"Question {turn}?"))
        found = ids(*talk, stored=stored_tokens)
        if stored_tokens is not None:
            assert found[: len(stored_tokens.ids) - 1] == stored_tokens.ids[:-1]
        stored_tokens = PromptTokens(
            (*found, *sampled(f"<|message|>Answer {turn}.<|return|>")), "f"
        )
        talk = (*talk, answer(f"Answer {turn}."))


# --- setting up ----------------------------------------------------------------------------------


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(SetupError, match="gpt-oss does not have the vocabulary of gpt-oss"):
        HarmonyDialect(CARD, ByteTokenizer(list(CONTROL_TOKENS.values())), encoding())


def test_namespaces_and_custom_tools_are_functions() -> None:
    tools = (
        Namespace(name="mcp", description="Of weather.", tools=(WEATHER,)),
        Custom(name="sh", description="A shell."),
    )
    text = decoded(ids(user("Hi"), tools=tools))
    assert "type mcp__get_weather = (_: {\ncity: string,\n})" in text
    assert "The functions mcp__… belong together: Of weather." in text
    assert "// A shell.\ntype sh = (_: {\ninput: string,\n})" in text


# --- what is read is what was written ------------------------------------------------------------

words = st.text(st.sampled_from('ab é🦄<|>{}"\\\n'), min_size=1, max_size=12)
heads = st.sampled_from(
    (
        " to=functions.get_weather<|channel|>commentary json",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json",
        "<|channel|>commentary to=get_weather",
        "<|channel|>analysis to=functions.get_weather code",
    )
)


@examples(30)
@given(thoughts=st.lists(words, max_size=2), preamble=st.none() | words, head=heads, city=words)
def test_parsed_reply_is_extended(
    thoughts: list[str], preamble: str | None, head: str, city: str
) -> None:
    """A reply that ends in a call, read, stored and answered: the next prompt begins with it."""
    first = dialect().render(Conversation(items=(user("Hi"),)), Options(tools=(WEATHER,)))
    turn = "<|end|><|start|>assistant"
    pieces = [f"<|channel|>analysis<|message|>{encoding_safe(text)}{turn}" for text in thoughts]
    if preamble is not None:
        pieces.append(f"<|channel|>commentary<|message|>{encoding_safe(preamble)}{turn}")
    arguments = json.dumps({"city": city}, ensure_ascii=False)
    reply = sampled(f"{''.join(pieces)}{head}<|message|>{arguments}<|call|>")
    read_items = stored([*first.parser.feed(Chunk(reply)), *first.parser.finish("stop")])
    (call,) = (item for item in read_items if isinstance(item, it.FunctionCall))
    assert json.loads(call.arguments) == {"city": city}
    visible = (*first.prompt.ids, *reply)
    found = ids(
        user("Hi"), *read_items, result(), tools=(WEATHER,), stored=PromptTokens(visible, "f")
    )
    assert found[: len(visible)] == visible


def encoding_safe(text: str) -> str:
    """``text`` without what would be read as a control token."""
    return text.replace("<|", "<.")


def stored(deltas: Sequence[Delta]) -> list[it.Item]:
    """The items of a reply, as they are stored."""
    found: list[it.Item] = []
    for built in read_reply(deltas).items:
        text = built.text.get("text", "")
        match built.item:
            case it.Reasoning():
                found.append(reasoning_done(text))
            case it.Message(phase=phase):
                found.append(answer(text, phase=phase))
            case it.FunctionCall() as call:
                found.append(replace(call, call_id="c1", arguments=text))
    return found


@pytest.mark.parametrize(
    "text", ["The cat sat on the mat. " * 400, "漢字。" * 2000, "x = 1\n" * 2000]
)
def test_long_texts_spell_the_same_in_windows(text: str) -> None:
    rendered = dialect().render(Conversation(items=(user(text),)), Options())
    spelled = b"".join(map(tokenizer().piece, rendered.prompt.ids)).decode()
    assert f"<|start|>user<|message|>{text}<|end|><|start|>assistant" in spelled


def test_long_texts_have_the_ids_of_the_library() -> None:
    text = "The cat sat on the mat, and it's 5 o'clock. " * 400
    ids = dialect().render(Conversation(items=(user(text),)), Options()).prompt.ids
    message = Line.from_role_and_content(Role.USER, text)
    library = tuple(encoding().render(message))
    assert ids[-len(library) - 2 :][: len(library)] == library


@pytest.mark.parametrize("word", ["a" * 30_000, "-_" * 15_000, "a\u0301" * 15_000, " " * 30_000])
def test_no_long_word_reaches_the_library(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work grows with the square of the length of a word, under the interpreter's lock."""
    lengths: list[int] = []
    encode = HarmonyEncoding.encode

    def record(self: HarmonyEncoding, text: str, **options: Any) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, **options)

    monkeypatch.setattr(HarmonyEncoding, "encode", record)
    ids = dialect().render(Conversation(items=(user(word),)), Options()).prompt.ids
    assert word in b"".join(map(tokenizer().piece, ids)).decode()
    assert max(lengths) <= 2_000


@pytest.mark.parametrize("word", ["a" * 6_000, "-_" * 3_000, "a\u0301" * 3_000, "'" * 6_000])
def test_instructions_and_tools_with_a_long_word_are_refused(word: str) -> None:
    for conversation, options in (
        (Conversation(items=(), instructions=f"Say {word}."), Options()),
        (Conversation(items=()), Options(tools=(Function(name="f", description=word),))),
    ):
        with pytest.raises(InvalidRequest, match="no word of more than 5000 characters"):
            dialect().render(conversation, options)
    fine = json.dumps({"a": ["b"] * 3_000}) + "Zwei Wörter. " * 1_000
    dialect().render(Conversation(items=(), instructions=fine), Options())
