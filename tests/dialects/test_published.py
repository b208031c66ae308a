"""Published chat templates, shortened but faithful in what they show and write: each is found by
its mark, shows tools, calls and results, and what it writes as a call is read as that call."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.dialects.chat.template import Template
from antiphon.dialects.chat.template_probe import TemplateCapabilities, probe
from antiphon.dialects.formats.reasoning_formats import REASONING
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.parser.lexer import terminals_of
from antiphon.inference.conversation import Conversation, Options, ToolChoice
from antiphon.inference.tokens import Chunk, ModelCard
from antiphon.stream.deltas import Delta
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
from antiphon.wire.response import Effort, ReasoningConfig
from antiphon.wire.tools import Function, Namespace
from tests.dialects.grammars import ConstrainedWriter
from tests.dialects.replies import items, read, specials, write_calls

FOLDER = Path(__file__).parent / "templates"
#: Those in the tests of families, under other names.
FAMILIES = {"hermes": "qwen", "mistral": "mistral", "llama3_json": "llama"}
FILES = {path.stem: path for path in sorted((FOLDER / "published").glob("*.jinja"))}
FILES |= {name: FOLDER / f"{other}.jinja" for name, other in FAMILIES.items()}
#: The row that each is read by; behind a hyphen stands which of the row's models it is of.
ROWS = {name: name.partition("-")[0] for name in FILES}
#: How they think, where they do.
THINKS = {
    "functionary_v3_2": "functionary_v3_2",
    "llm_jp": "llm_jp",
    "minimax_m1": "think",
    "xlam-cogito": "think",
    "deepseek_v4": "think",
    "granite": "granite",
    "granite-33": "ernie45",
    "hunyuan_a13b-apriel": "apriel",
    "hy_v3": "hy_v3",
    "minicpm5": "think",
    "minimax_m3": "minimax_m3",
    "mistral_v13": "mistral",
    "muse": "muse",
    "solar_open": "solar_open",
    "deepseek_v31": "think",
    "deepseek_v32": "think",
    "gemma4": "gemma4",
    "gigachat35": "think",
    "glm45": "think",
    "hermes": "think",
    "hermes-exaone": "think",
    "hyperclovax": "hyperclovax",
    "k2_horizon": "k2_horizon",
    "hunyuan_a13b": "hunyuan_a13b",
    "kimi_k2": "think",
    "lfm2": "think",
    "minimax_m2": "think",
    "nemotron_json": "think",
    "qwen3_coder": "think",
    "seed_oss": "seed",
    "cohere": "cohere",
    "apertus": "apertus",
    "kimi_k3": "kimi_k3",
}
#: Whose template writes tokens with nothing between them before a call, or moves the tools.
ODD = {"llama3_json-llama4", "mistral"}
SEARCH = Function(
    name="search",
    description="Searches the web.",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["query"],
    },
)
ARGUMENTS = {"query": "Oslo now", "limit": 3}
each_template = pytest.mark.parametrize("name", FILES)


@cache
def dialect(name: str, *besides: str) -> tuple[ChatDialect, ByteTokenizer]:
    tokens = specials(TOOLS[ROWS[name]]) | set(besides)
    if name in THINKS:
        thinks = REASONING[THINKS[name]]
        tokens |= {t for t in (*thinks.open, *thinks.close) if "sep" not in t}
    return dialect_of(FILES[name].read_text(encoding="utf-8"), tokens)


def dialect_of(template: str, tokens: Collection[str]) -> tuple[ChatDialect, ByteTokenizer]:
    tokenizer = ByteTokenizer(sorted(tokens))
    card = ModelCard(
        name="m",
        context_size=1000,
        chat_template=template,
        bos_token="<s>",
        eos_token=END,
        fingerprint="f",
    )
    return ChatDialect(card, tokenizer), tokenizer


@cache
def capabilities(name: str) -> TemplateCapabilities:
    source = FILES[name].read_text(encoding="utf-8")
    return probe(Template(source, bos="<s>", eos=END))


def thinking_only() -> Iterator[tuple[str, ChatDialect, ByteTokenizer]]:
    """Models without calls of their own."""
    for path in sorted((FOLDER / "thinking").glob("*.jinja")):
        dialect, tokenizer = dialect_of(path.read_text(encoding="utf-8"), ())
        yield path.stem, dialect, tokenizer


def user(text: str) -> Message:
    return Message(role="user", content=(InputText(text=text),))


def calls_and_results(count: int = 1) -> Iterator[Item]:
    for n in range(count):
        yield FunctionCall(call_id=f"c{n}", name="search", arguments=json.dumps(ARGUMENTS))
    for n in range(count):
        yield FunctionCallOutput(call_id=f"c{n}", output=f"sunny {n}")


def rendered_text(name: str, *talk: Item) -> str:
    model_dialect, tokenizer = dialect(name)
    conversation = Conversation(items=talk, instructions="Be kind.")
    prompt = model_dialect.render(conversation, Options(tools=(SEARCH,))).prompt
    return b"".join(map(tokenizer.piece, prompt.ids)).decode()


@pytest.mark.requirement("FM-DETECT")
@each_template
def test_published_template_is_detected(name: str) -> None:
    model_dialect, _ = dialect(name)
    assert model_dialect.tools.name == ROWS[name] and model_dialect.template_has_tools
    assert (model_dialect.reasoning and model_dialect.reasoning.name) == THINKS.get(name)


@each_template
def test_published_template_shows_tools_calls_and_results(name: str) -> None:
    text = rendered_text(name, user("Where?"), *calls_and_results(), user("Thanks."))
    for phrase in ("Be kind.", "Searches the web.", "Where?", "Oslo now", "sunny 0", "Thanks."):
        assert phrase in text, phrase
    assert text.rindex("Oslo now") < text.rindex("sunny 0") < text.rindex("Thanks.")


@pytest.mark.requirement("FM-DETECT")
@each_template
@pytest.mark.parametrize("count", [1, 2])
def test_calls_of_the_template_are_parsed(name: str, count: int) -> None:
    model_dialect, tokenizer = dialect(name)
    question = Conversation(items=(user("Where?"),), instructions="Be kind.")
    options = Options(tools=(SEARCH,))
    rendered = model_dialect.render(question, options)
    before = rendered_text(name, user("Where?"))
    after = rendered_text(name, user("Where?"), *calls_and_results(count))
    ids = tokenizer.encode(after[: after.index("sunny 0")], special=True)
    ids = ids[_shared(tokenizer.encode(before, special=True), ids) :]
    deltas: list[Delta] = []
    for token in ids:
        deltas += list(rendered.parser.feed(Chunk(ids=(token,))))[1:]
    deltas += rendered.parser.finish("stop")
    found = [item for item in items(deltas)[0] if "call" in item]
    traits = capabilities(name)
    expected = count if traits.parallel_calls or not traits.results else 1
    assert [item["call"] for item in found] == ["search"] * expected
    assert [json.loads(item["arguments"]) for item in found] == [ARGUMENTS] * expected


#: Whose template writes what is said before calls as no other text is.
SAID_ODDLY = {"mistral", "xlam-cogito"}


@each_template
def test_calls_of_the_template_in_a_tool_loop_are_parsed(name: str) -> None:
    """Thinking, words and a call, as far as it writes them: nothing is lost, nothing is added."""
    model_dialect, tokenizer = dialect(name)
    if not capabilities(name).results or name in SAID_ODDLY:
        return
    reasoning_done = Reasoning(content=(ReasoningText(text="Where it is."),))
    phrase = Message(role="assistant", content=(OutputText(text="I look."),))
    options = Options(tools=(SEARCH,), reasoning=ReasoningConfig(effort="high"))
    before = prompt_text(name, options, user("Where?"))
    after = prompt_text(name, options, user("Where?"), reasoning_done, phrase, *calls_and_results())
    ids = tokenizer.encode(after[: after.index("sunny 0")], special=True)
    ids = ids[_shared(tokenizer.encode(before, special=True), ids) :]
    wrote = b"".join(map(tokenizer.piece, ids)).decode()
    question = Conversation(items=(user("Where?"),))
    parsers = (model_dialect.render(question, options).parser for _ in range(2))
    whole, apart = (
        read(parser, chunks)
        for parser, chunks in zip(parsers, ([tuple(ids)], [(id,) for id in ids]), strict=True)
    )
    assert whole == apart
    found = items(whole)[0]
    call = next(n for n, item in enumerate(found) if "call" in item)
    assert found[call]["call"] == "search" and json.loads(found[call]["arguments"]) == ARGUMENTS
    kinds = {"reasoning": "Where it is.", "message": "I look."}
    closes = model_dialect.reasoning.close if model_dialect.reasoning else ()
    if ends_in_thinking(model_dialect, before) and not any(close in wrote for close in closes):
        kinds = {"reasoning": "I look."}  # the thinking that the prompt has begun goes on
    assert found[:call] == [{kind: text} for kind, text in kinds.items() if text in wrote]


def ends_in_thinking(spoken: ChatDialect, prompt: str) -> bool:
    return spoken.reasoning is not None and bool(spoken.reasoning.closing_tag(prompt))


@pytest.mark.requirement("FM-HELD")
@each_template
@pytest.mark.parametrize("choice", ["required", "auto"])
def test_calls_of_the_template_match_the_grammar(
    name: str, choice: Literal["required", "auto"]
) -> None:
    """Grammars let a model write as it was trained to."""
    model_dialect, tokenizer = dialect(name, "<|return|>")
    traits = capabilities(name)
    if not traits.results or name in ODD:
        return
    question = Conversation(items=(user("Where?"),), instructions="Be kind.")
    rendered = model_dialect.render(
        question, Options(tools=(SEARCH,), tool_choice=ToolChoice(choice))
    )
    before = tokenizer.encode(rendered_text(name, user("Where?")), special=True)
    end = (
        END
        if END not in "".join(terminals_of(model_dialect.reasoning, model_dialect.tools))
        else "<|return|>"
    )
    writer = ConstrainedWriter(tokenizer, rendered.constraint, end=end)
    for count in (1, 2) if traits.parallel_calls else (1,):
        after = rendered_text(name, user("Where?"), *calls_and_results(count))
        ids = tokenizer.encode(after[: after.index("sunny 0")], special=True)
        ids = ids[_shared(before, ids) :]
        if (
            rendered.parser.is_thinking and model_dialect.reasoning
        ):  # which the template leaves out again
            ids = _behind(ids, tokenizer.encode(model_dialect.reasoning.close[0], special=True))
            reasoning_done = model_dialect.reasoning.closing_text(
                rendered_text(name, user("Where?"))
            )
            ids = tokenizer.encode(reasoning_done, special=True) + ids
        written = b"".join(map(tokenizer.piece, writer.longest(ids))).decode()
        assert written.count("Oslo now") == count, b"".join(map(tokenizer.piece, ids)).decode()


def _behind(ids: list[int], close: list[int]) -> list[int]:
    """``ids`` behind these, if they stand there."""
    found = (n for n in range(len(ids)) if ids[n : n + len(close)] == close)
    at = next(found, None)
    return ids if at is None else ids[at + len(close) :]


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize(
    ("name", "token"), [("kimi_k3", "<|end_of_msg|>"), ("hermes", "<|im_end|>"), ("gigachat3", "")]
)
def test_separator_tokens_do_not_end_the_turn(name: str, token: str) -> None:
    """K3 closes its thinking, and GigaChat its text before a call, with what ends its answer."""
    model_dialect, tokenizer = dialect(name, token) if token else dialect(name)
    stops = model_dialect.render(
        Conversation(items=(user("Hi"),)), Options(tools=(SEARCH,))
    ).stop_ids
    assert stops == ((tokenizer.special[token],) if token else ())


@pytest.mark.parametrize(
    ("name", "effort", "end"),
    [
        ("hermes-exaone", "none", "[|assistant|]\n<think>\n\n</think>\n\n"),
        ("hermes-exaone", "low", "[|assistant|]\n<think>\n"),
        ("llm_jp", "none", "<|channel|>analysis<|message|><|end|><|start|>assistant"),
        ("muse", "none", " to=self<|message|><|eom|><|start|>assistant"),
        ("minimax_m3", "none", "</mm:think>"),
        ("minimax_m3", "low", "<mm:think>"),
        ("seed_oss", "none", "</seed:cot_budget_reflect>\n</seed:think>"),
        ("solar_open", "none", "<|begin|>assistant<|think|><|end|><|begin|>assistant"),
        ("functionary_v3_2", "none", ">>>"),
        ("hy_v3", "none", "<think:opensource></think:opensource>"),
        ("hy_v3", "medium", "<think:opensource>"),
        ("hy_v3", "xhigh", "<think:opensource>"),
        ("k2_horizon", "none", "<ifm|think_faster>\n\n</ifm|think_faster>\n\n"),
        ("k2_horizon", "medium", "<ifm|think_fast>\n"),
        ("k2_horizon", "xhigh", "<ifm|think>\n"),
        ("hyperclovax", "none", "<|im_start|>assistant\n"),
        ("hyperclovax", "low", "<|im_start|>assistant/think\n"),
    ],
)
def test_reasoning_effort_uses_values_of_the_template(name: str, effort: Effort, end: str) -> None:
    """Hunyuan 3 and K2 Horizon refuse all but three words; clients send others."""
    assert prompt_text(name, Options(reasoning=ReasoningConfig(effort=effort))).endswith(end)


@pytest.mark.parametrize(
    ("name", "effort", "expected"),
    [
        ("kimi_k3", "low", "thinking_effort=low"),
        ("kimi_k3", "medium", "thinking_effort=high"),
        ("kimi_k3", "xhigh", "thinking_effort=max"),
        ("llm_jp", "minimal", "Reasoning: low"),
        ("muse", "medium", "Reasoning strength: medium"),
        ("minimax_m3", "high", "thinking mode: enabled"),
    ],
)
def test_reasoning_effort_variables_of_templates_are_set(
    name: str, effort: Effort, expected: str
) -> None:
    assert expected in prompt_text(name, Options(reasoning=ReasoningConfig(effort=effort)))


def test_thinking_budget_is_passed_to_the_template() -> None:
    assert "within 77 tokens" in prompt_text("seed_oss", Options(thinking_budget=77))
    fixed = Options(thinking_budget=77, template={"thinking_budget": 9})
    assert "within 9 tokens" in prompt_text("seed_oss", fixed)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("functionary_v3_2", ">>>all\nIt is"),
        ("llm_jp", "<|start|>assistant<|channel|>final<|message|>It is"),
        ("muse", "<|start|>assistant to=user<|message|>It is"),
    ],
)
def test_cut_answer_continues_after_its_recipient(name: str, end: str) -> None:
    cut = Message(role="assistant", content=(OutputText(text="It is"),), status="incomplete")
    assert prompt_text(name, Options(), user("Hi"), cut).endswith(end)


def prompt_text(name: str, options: Options, *talk: Item) -> str:
    model_dialect, tokenizer = dialect(name)
    prompt = model_dialect.render(Conversation(items=talk or (user("Hi"),)), options).prompt
    return b"".join(map(tokenizer.piece, prompt.ids)).decode()


def test_reasoning_only_models_are_detected() -> None:
    for name, spoken, tokenizer in thinking_only():
        assert spoken.reasoning and spoken.reasoning.name == name and not spoken.template_has_tools
        rendered = spoken.render(Conversation(items=(user("Hi"),)), Options())
        reply_text = f"Hm.\n{spoken.reasoning.close[0]}\n\nHello."
        ids = tuple(tokenizer.encode(reply_text, special=True))
        deltas = [*rendered.parser.feed(Chunk(ids=ids)), *rendered.parser.finish("stop")][1:]
        assert items(deltas)[0] == [{"reasoning": "Hm."}, {"message": "Hello."}]


@pytest.mark.requirement("FM-SPACES")
def test_namespace_description_is_shown() -> None:
    model_dialect, tokenizer = dialect("hermes")
    space = Namespace(name="crm", description="Customers.", tools=(SEARCH,))
    conversation = Conversation(items=(user("Hi"),))
    for choice, expected in (("auto", True), ("none", False)):
        options = Options(tools=(space,), tool_choice=ToolChoice(choice))  # type: ignore[arg-type]
        ids = model_dialect.render(conversation, options).prompt.ids
        text = b"".join(map(tokenizer.piece, ids)).decode()
        assert ("crm__… belong together: Customers." in text) is expected


@pytest.mark.parametrize("separated", [True, False])
def test_tag_suffix_follows_the_vocabulary(separated: bool) -> None:
    """Hunyuan's differs from one checkpoint to another, and its fourth model has a tag less."""
    form = TOOLS["hy_v3" if separated else "hy_v4"]
    thinks = REASONING[form.name]
    own, other = (":opensource" if separated else ":6124c78e"), ":a1b2"
    tokens = sorted(t.replace(own, other) for t in {*specials(form), *thinks.open, *thinks.close})
    tokenizer = ByteTokenizer(tokens)
    template = FILES["hy_v3"].read_text(encoding="utf-8").replace(":opensource", other)
    card = ModelCard(
        name="m", context_size=99, chat_template=template, eos_token=END, fingerprint=""
    )
    spoken = ChatDialect(card, tokenizer)
    assert spoken.tools.name == form.name
    parser = spoken.render(Conversation(items=(user("Hi"),)), Options(tools=(SEARCH,))).parser
    phrase = "<think>Hm.</think>" + write_calls(form, [("search", ARGUMENTS)])
    phrase = phrase.replace("think>", f"think{other}>").replace(own, other)
    deltas = list(parser.feed(Chunk(ids=tuple(tokenizer.encode(phrase, special=True)))))[1:]
    found, _ = items([*deltas, *parser.finish("stop")])
    assert [item.get("call") for item in found] == [None, "search"]
    assert json.loads(found[1]["arguments"]) == ARGUMENTS


def test_rows_whose_source_is_a_template_have_a_published_template() -> None:
    assert {name for name, row in TOOLS.items() if "template" in row.source} == set(ROWS.values())
    thinks = {name for name, row in REASONING.items() if "template" in row.source}
    assert thinks == set(THINKS.values()) | {name for name, *_ in thinking_only()}


def test_every_row_names_its_models_and_source_and_no_alias_is_ambiguous() -> None:
    assert all(row.models and row.source for row in (*TOOLS.values(), *REASONING.values()))
    aliases = [alias for row in TOOLS.values() for alias in row.aliases]
    assert len(aliases) == len(set(aliases)) and not set(aliases) & TOOLS.keys()
