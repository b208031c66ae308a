"""The chat dialect over templates of real families: prompts, and how their replies are read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.base import Rendered
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.errors import InvalidRequest, SetupError
from antiphon.inference.conversation import Conversation, Options, PromptTokens, ToolChoice
from antiphon.inference.tokens import Chunk, ModelCard
from antiphon.stream.deltas import Open, Text
from antiphon.testing.tokenizer import END, ByteTokenizer
from antiphon.wire.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
)
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat, ReasoningConfig, TextConfig
from antiphon.wire.tools import Custom, Function
from tests.dialects.families import TOKENS, source

WEATHER = Function(
    name="weather",
    description="Tells the weather.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)


def user(text: str) -> Message:
    return Message(role="user", content=(InputText(text=text),))


def message(role: Any, text: str) -> Message:
    return Message(role=role, content=(InputText(text=text),))


def assistant(text: str, **more: Any) -> Message:
    return Message(role="assistant", content=(OutputText(text=text),), **more)


def reasoning_done(text: str, **more: Any) -> Reasoning:
    return Reasoning(content=(ReasoningText(text=text),), **more)


def call(id: str = "c1", arguments: str = '{"city": "Oslo"}') -> FunctionCall:
    return FunctionCall(call_id=id, name="weather", arguments=arguments)


def output(id: str = "c1", text: str = "sunny") -> FunctionCallOutput:
    return FunctionCallOutput(call_id=id, output=text)


class Model:
    """A family's dialect, with its tokenizer."""

    def __init__(self, family: str | None, *, tokens: Any = None, **more: Any) -> None:
        special = TOKENS[family] if family and tokens is None else tuple(tokens or ())
        card: dict[str, Any] = {"name": "m", "context_size": 1000, "fingerprint": "f"}
        card |= {"bos_token": special[0] if special else None, "eos_token": END}
        card |= {"chat_template": source(family) if family else None}
        card |= more.pop("card", {})
        self.tokenizer = ByteTokenizer(special)
        self.dialect = ChatDialect(
            ModelCard(**card), self.tokenizer, today=lambda: datetime(2026, 7, 9), **more
        )

    def render(
        self,
        *items: Item,
        instructions: str | None = None,
        stored: PromptTokens | None = None,
        **options: Any,
    ) -> Rendered:
        conversation = Conversation(items=items, instructions=instructions, stored_tokens=stored)
        return self.dialect.render(conversation, Options(**options))

    def prompt(self, *items: Item, **more: Any) -> str:
        return self.spell(self.render(*items, **more).prompt.ids)

    def spell(self, ids: tuple[int, ...]) -> str:
        return b"".join(map(self.tokenizer.piece, ids)).decode()

    def read(self, rendered: Rendered, reply: str) -> list[tuple[str, str]]:
        """The items of a reply: (type, text)."""
        ids = tuple(self.tokenizer.encode(reply, special=True))
        found: list[tuple[str, str]] = []
        deltas = [*rendered.parser.feed(Chunk(ids=ids)), *rendered.parser.finish("stop")]
        for delta in deltas:
            if isinstance(delta, Open):
                found.append((type(delta.item).__name__, ""))
            elif isinstance(delta, Text):
                found[-1] = (found[-1][0], found[-1][1] + delta.text)
        return found


# --- families ------------------------------------------------------------------------------------


def test_smollm_prompt_has_a_system_message() -> None:
    model = Model("smol")
    assert model.prompt(user("Hi")) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert model.prompt(message("developer", "D"), user("Hi"), instructions="I") == (
        "<|im_start|>system\nI\n\nD<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.requirement("VO-1")
def test_template_without_tools_gets_tool_instructions() -> None:
    model = Model("smol")
    rendered = model.render(user("Hi"), call(), output(), instructions="Be kind.", tools=(WEATHER,))
    text = model.spell(rendered.prompt.ids)
    assert text.startswith("<|im_start|>system\nBe kind.\n\n# Tools")
    system = text.partition("<|im_end|>")[0]
    assert '"name": "weather"' in system and '"city"' in system
    assert text.endswith(
        '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    reply = (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>'
    )
    assert model.read(rendered, reply) == [("FunctionCall", '{"city": "Rome"}')]


def test_qwen_tool_loop_prompt() -> None:
    model = Model("qwen")
    text = model.prompt(
        user("Weather?"), reasoning_done("look"), assistant("Let me see."), call(), output(),
        tools=(WEATHER,),
    )  # fmt: skip
    assert text.startswith('<|im_start|>system\n# Tools\n\n<tools>\n{"type": "function", ')
    assert text.endswith(
        "<|im_start|>user\nWeather?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nlook\n</think>\n\nLet me see.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_past_calls_stay_calls_when_no_tool_may_be_called() -> None:
    model = Model("qwen")
    text = model.prompt(
        user("Weather?"), call(), output(), user("And?"), tool_choice=ToolChoice("none")
    )
    assert '<tool_call>\n{"name": "weather"' in text and "<tool_response>\nsunny" in text
    rendered = model.render(user("a"), tools=(WEATHER,), tool_choice=ToolChoice("none"))
    assert "weather" not in model.spell(rendered.prompt.ids)
    written = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
    assert [kind for kind, _ in model.read(rendered, written)] == ["Message"]


def test_llama_gets_one_call_an_answer_and_the_date() -> None:
    model = Model("llama")
    text = model.prompt(
        user("Weather?"), call("a"), call("b", '{"city": "Rome"}'), output("a", "1"),
        output("b", "2"), tools=(WEATHER,),
    )  # fmt: skip
    assert text.startswith("<|begin|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 09 ")
    oslo, rome = text.index('{"city": "Oslo"}'), text.index('{"city": "Rome"}')
    assert oslo < text.index('"1"') < rome < text.index('"2"')


def test_mistral_gets_alternating_roles_and_short_ids() -> None:
    model = Model("mistral")
    text = model.prompt(
        user("A"), user("B"), assistant("C"), message("developer", "D"), user("E"), call(),
        output(),
        instructions="I", tools=(WEATHER,),
    )  # fmt: skip
    assert text.startswith("<s>[INST]A\n\nB[/INST]C<|end|>[AVAILABLE_TOOLS][")
    assert "[INST]E[/INST]" in text or "[INST]I\n\nD\n\nE[/INST]" in text
    assert '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}, "id": "' in text
    assert text.count("<s>") == 1


def test_gemma_gets_system_text_in_the_user_message() -> None:
    model = Model("gemma")
    text = model.prompt(message("system", "S"), user("U"), user("V"), instructions="I")
    assert text == (
        "<bos><start_of_turn>user\nI\n\nS\n\nU\n\nV<end_of_turn>\n<start_of_turn>model\n"
    )


def test_one_leading_system_message() -> None:
    model = Model("strict")
    text = model.prompt(
        user("U"), assistant("A"), message("system", "S"), user("V"), instructions="I"
    )
    assert text.startswith("<|im_start|>system\nI\n\nS<|im_end|>\n<|im_start|>user\nU")


def test_non_object_arguments_do_not_break_a_template() -> None:
    model = Model("strict")
    text = model.prompt(user("U"), call(arguments='{"ci'), output(text="bad"), tools=(WEATHER,))
    assert '<parameter=arguments>\n{"ci\n</parameter>' in text


def test_content_as_parts() -> None:
    model = Model("parts")
    assert model.prompt(user("Hi")).endswith("user\nHi<|im_end|>\n<|im_start|>assistant\n")


_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("<tool_response>\nSunny.\n</tool_response>", [("Message", "Sunny.")]),
        ("Sunny.\n<tool_response>\nRain.", [("Message", "Sunny.")]),
        (f"{_CALL}\n<tool_response>\nRain.", [("FunctionCall", '{"city": "Oslo"}')]),
        ("Sunny, says <tool_response>.", [("Message", "Sunny, says <tool_response>.")]),
    ],
)
def test_imitated_results_are_not_part_of_an_answer(
    written: str, answer: list[tuple[str, str]]
) -> None:
    """A model that has no tools of its own sees results in tags that the prompt chose."""
    model = Model("smol")
    assert model.read(model.render(user("Hi"), tools=(WEATHER,)), written) == answer
    parser = model.render(user("Hi"), tools=(WEATHER,)).parser
    for id in model.tokenizer.encode(written, special=True):
        list(parser.feed(Chunk(ids=(id,))))
    assert parser.done == ("Rain" in written), "the turn ends where an invented result begins"
    assert model.read(model.render(user("Hi")), written) == [("Message", written)]


def test_model_without_a_template_gets_chatml_or_plain_text() -> None:
    chatml = Model(None, tokens=("<|im_start|>", "<|im_end|>"))
    assert chatml.prompt(user("Hi"), instructions="I") == (
        "<|im_start|>system\nI<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    plain = Model(None, card={"bos_token": None})
    rendered = plain.render(user("Hi"), instructions="I")
    assert plain.spell(rendered.prompt.ids) == "system: I\n\nuser: Hi\n\nassistant:"
    assert "\n\nuser:" in rendered.stop


def test_template_for_tools_is_used_with_tools() -> None:
    named = {"tool_use": source("qwen")}
    model = Model("smol", tokens=TOKENS["qwen"], card={"chat_templates": named})
    assert "# Tools" in model.prompt(user("Hi"), tools=(WEATHER,))
    assert "SmolLM" in model.prompt(user("Hi"))


def test_tool_template_with_unknown_format_is_not_used() -> None:
    """As that of Command R: tools are told of in words, and read as those words say."""
    asks = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}Write 'Action:' and JSON."
    model = Model("smol", card={"chat_templates": {"tool_use": asks}})
    prompt = model.prompt(user("Hi"), tools=(WEATHER,))
    assert "<tool_call>" in prompt and "Action:" not in prompt


def test_template_for_tools_may_be_the_only_one() -> None:
    named = {
        "default": source("qwen").replace(
            "{%- if tools %}", "{%- for tool in tools %}{%- endfor %}{%- if tools %}", 1
        )
    }
    model = Model(None, tokens=TOKENS["qwen"], card={"chat_templates": named})
    assert "# Tools" in model.prompt(user("Hi"), tools=(WEATHER,))
    assert "# Tools" not in model.prompt(user("Hi"))


@pytest.mark.requirement("VO-2", "VN-1")
def test_formats_can_be_named() -> None:
    model = Model("smol", tool_format="mistral", reasoning_format="think")
    rendered = model.render(user("Hi"), tools=(WEATHER,))
    reply = '<think>\nhm\n</think>\n\n[TOOL_CALLS][{"name": "weather", "arguments": {"city": "X"}}]'
    assert model.read(rendered, reply) == [("Reasoning", "hm"), ("FunctionCall", '{"city": "X"}')]
    with pytest.raises(SetupError, match="tool_format"):
        Model("smol", tool_format="nonesuch")


# --- what a template refuses ---------------------------------------------------------------------


def test_template_error_is_an_invalid_request() -> None:
    template = (
        "{% for m in messages %}{% if 'x' in m.content %}{{ raise_exception('no x') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    model = Model(None, template=template, card={"bos_token": None})
    with pytest.raises(InvalidRequest, match="no x") as refused:
        model.render(user("x"))
    assert refused.value.param == "input"


def test_reserved_template_variables_cannot_be_set() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Model("qwen").render(user("Hi"), template={"messages": []})
    assert refused.value.param == "chat_template_kwargs.messages"


@pytest.mark.requirement("D-51", "API-TEXT-MODEL")
def test_images_are_noted_or_refused() -> None:
    from antiphon.wire.items import InputImage

    picture = Message(role="user", content=(InputImage(file_id="f"),))
    assert "[image omitted" in Model("smol", unreadable="describe").prompt(picture)
    with pytest.raises(InvalidRequest):
        Model("smol").render(picture)


# --- tokens --------------------------------------------------------------------------------------


def test_bos_is_written_once() -> None:
    for add in (True, False):
        assert Model("gemma", card={"add_bos": add}).prompt(user("U")).count("<bos>") == 1
    smol = {"bos_token": "<|im_start|>"}
    assert (
        not Model("smol", card={**smol, "add_bos": False})
        .prompt(user("U"))
        .startswith("<|im_start|>" * 2)
    )
    model = Model("parts", tokens=("<s>", *TOKENS["parts"]), card={"add_bos": True})
    assert model.prompt(user("U")).startswith("<s><|im_start|>user")


@pytest.mark.parametrize(
    ("family", "end"),
    [("smol", "<|im_end|>"), ("gemma", "<end_of_turn>"), ("r1", "<｜end▁of▁sentence｜>")],
)
def test_models_turn_ends_where_the_template_ends_it(family: str, end: str) -> None:
    model = Model(family)
    assert model.render(user("U")).stop_ids == (model.tokenizer.special[end],)


def test_end_token_of_the_tokenizer_is_not_repeated() -> None:
    assert Model("mistral").render(user("U")).stop_ids == ()


@pytest.mark.requirement("API-LOOK-ALIKE")
@given(
    st.lists(st.sampled_from((*TOKENS["qwen"], END, "<|im_", "start|>", "a", " ", "\n"))),
    st.sampled_from(("user", "system", "developer")),
)
def test_users_cannot_spell_tokens(pieces: list[str], role: str) -> None:
    def render(text: str) -> Rendered:
        return QWEN.render(
            *(message(role, text), call("c", "{}"), output("c", text), user(text)),
            tools=(Function(name="weather", description=text),),
            instructions=text,
        )

    text = "-".join(("a", *pieces, "z"))
    ids, plain = render(text).prompt.ids, render("az").prompt.ids
    assert [id for id in ids if id > 255] == [id for id in plain if id > 255]
    assert QWEN.spell(ids).count(text) >= 4 - ("\n" in text)


QWEN = Model("qwen")


@pytest.mark.requirement("D-79")
def test_next_turn_extends_the_stored_tokens() -> None:
    first = QWEN.render(user("Weather?"), tools=(WEATHER,))
    calling = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    reply = f"<think>\nlook\n</think>\n\n{calling}<|im_end|>"
    sampled = QWEN.tokenizer.encode(reply, special=True)
    stored = PromptTokens(ids=(*first.prompt.ids, *sampled), fingerprint="f")
    again = QWEN.render(
        user("Weather?"), reasoning_done("look"), call(), output(), tools=(WEATHER,), stored=stored
    )
    assert again.prompt.ids[: len(stored.ids)] == stored.ids
    fresh = QWEN.render(
        user("Weather?"), reasoning_done("look"), call(), output(), tools=(WEATHER,)
    )
    assert QWEN.spell(again.prompt.ids) == QWEN.spell(fresh.prompt.ids)


def test_unusual_output_of_the_last_turn_is_reused_as_tokens() -> None:
    """The template would write the arguments otherwise: what is kept ends before them."""
    first = QWEN.render(user("W?"), tools=(WEATHER,))
    reply = '<tool_call>\n{"name":"weather","arguments":{"city":"Oslo"}}\n</tool_call><|im_end|>'
    stored = PromptTokens(
        ids=(*first.prompt.ids, *QWEN.tokenizer.encode(reply, special=True)), fingerprint="f"
    )
    again = QWEN.render(user("W?"), call(), output(), tools=(WEATHER,), stored=stored)
    assert (
        again.prompt.ids[: len(first.prompt.ids) - 20] == stored.ids[: len(first.prompt.ids) - 20]
    )
    assert '{"name": "weather", "arguments"' in QWEN.spell(again.prompt.ids)


# --- thinking ------------------------------------------------------------------------------------


def effort(level: Any) -> ReasoningConfig:
    return ReasoningConfig(effort=level)


def test_thinking_switch_follows_the_effort() -> None:
    on, off = QWEN.prompt(user("U")), QWEN.prompt(user("U"), reasoning=effort("none"))
    assert off == on + "<think>\n\n</think>\n\n"
    assert QWEN.prompt(user("U"), reasoning=effort("high")) == on
    settings = {"enable_thinking": False}
    assert QWEN.prompt(user("U"), template=settings) == off
    assert QWEN.prompt(user("U"), template=settings, reasoning=effort("high")) == off
    assert Model("qwen", settings=settings).prompt(user("U")) == off


def test_effort_none_closes_the_reasoning_of_a_model_that_always_thinks() -> None:
    model = Model("r1")
    rendered = model.render(user("U"), reasoning=effort("none"))
    assert model.spell(rendered.prompt.ids).endswith("<｜Assistant｜><think>\n\n</think>\n\n")
    assert model.read(rendered, "Yes") == [("Message", "Yes")]


def test_disabled_reasoning_is_absent_from_the_grammar() -> None:
    for level, may in (("none", False), ("low", True)):
        request = {
            "tools": (WEATHER,),
            "tool_choice": ToolChoice("required"),
            "reasoning": effort(level),
        }
        constraint = QWEN.render(user("U"), **request).constraint
        assert constraint is not None and ("thought" in constraint.lark) is may


def test_prompt_end_sets_the_first_parser_state() -> None:
    model = Model("r1")
    rendered = model.render(user("U"), reasoning=effort("low"))
    assert model.read(rendered, "hm\n</think>\n\nYes") == [("Reasoning", "hm"), ("Message", "Yes")]
    assert QWEN.read(QWEN.render(user("U <think>")), "Yes") == [("Message", "Yes")]


def test_effort_levels_are_those_of_the_template() -> None:
    template = "{{ reasoning_effort }}:{% for m in messages %}{{ m.content }}{% endfor %}"
    model = Model(None, template=template, card={"bos_token": None})
    levels = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
    for request, expected in levels.items():
        assert model.prompt(user("U"), reasoning=effort(request)) == f"{expected}:U"


def test_thinking_in_a_tool_loop_stays_where_the_template_knows_none() -> None:
    model = Model("r1")
    text = model.prompt(
        reasoning_done("old"), assistant("A"), user("U"), reasoning_done("now"), call(), output()
    )
    assert "old" not in text


# --- going on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["smol", "qwen", "gemma", "mistral", "llama"])
def test_cut_answer_is_continued(family: str) -> None:
    model = Model(family)
    opened = model.prompt(user("U"))
    cut = assistant("The answer is ", status="incomplete")
    assert model.prompt(user("U"), cut) == f"{opened}The answer is "


def test_cut_reasoning_is_continued() -> None:
    rendered = QWEN.render(user("U"), reasoning_done("First, ", status="incomplete"))
    assert QWEN.spell(rendered.prompt.ids).endswith("assistant\n<think>\nFirst, ")
    assert QWEN.read(rendered, "then\n</think>\n\nYes")[0] == ("Reasoning", "then")
    both = QWEN.render(user("U"), reasoning_done("hm"), assistant("Yes, ", status="in_progress"))
    assert QWEN.spell(both.prompt.ids).endswith("<think>\nhm\n</think>\n\nYes, ")
    assert QWEN.read(both, "sure") == [("Message", "sure")]


def test_opened_reasoning_is_closed_before_a_continued_answer() -> None:
    text = Model("r1").prompt(user("U"), assistant("Yes, ", status="incomplete"))
    assert text.endswith("<｜Assistant｜><think>\n\n</think>\n\nYes, ")


# --- words ---------------------------------------------------------------------------------------


def test_enforced_schema_is_in_the_prompt() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = JsonSchemaFormat(name="n", schema=schema, description="Ages.")
    text = QWEN.prompt(user("U"), text=TextConfig(format=form), instructions="I")
    assert '"properties": {"a": {"type": "integer"}}' in text and "Ages." in text
    assert text.startswith("<|im_start|>system\nI\n\n")
    assert "JSON object" in QWEN.prompt(user("U"), text=TextConfig(format=JsonObjectFormat()))


def test_verbosity_is_in_the_prompt() -> None:
    plain = QWEN.prompt(user("U"))
    assert QWEN.prompt(user("U"), text=TextConfig(verbosity="medium")) == plain
    assert "short" in QWEN.prompt(user("U"), text=TextConfig(verbosity="low"))


def test_custom_tool_calls_are_parsed() -> None:
    rendered = QWEN.render(user("U"), tools=(Custom(name="patch"),))
    reply = '<tool_call>\n{"name": "patch", "arguments": {"input": "a\\nb"}}\n</tool_call>'
    assert QWEN.read(rendered, reply) == [("CustomToolCall", "a\nb")]
