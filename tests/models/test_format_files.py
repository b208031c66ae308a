"""Formats of users: a file becomes rows that read and write; what is wrong is told by its key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.errors import SetupError
from antiphon.inference.tokens import ModelCard
from antiphon.models.format_files import load
from antiphon.testing.dialect_check import check_dialect
from antiphon.testing.tokenizer import END, ByteTokenizer
from scripts.docs import ROOT
from tests.dialects.grammar.test_builder import TRIP, grammar_builder
from tests.dialects.grammars import ConstrainedWriter
from tests.dialects.replies import SHAPES, items, read, write_calls


def example() -> dict[str, str]:
    """The files of the example in docs/models.md: name → text."""
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    found = re.findall(r"```(?:toml|jinja) title=\"([^\"]+)\"\n(.*?)```", page, re.DOTALL)
    return {Path(name).name: text for name, text in found}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = example()
    (tmp_path / "arrows.toml").write_text(files["arrows.toml"], encoding="utf-8")
    return tmp_path


@pytest.mark.requirement("FM-OWN")
def test_example_of_the_page_works(folder: Path) -> None:
    from antiphon.dialects.parser.parser import FormatParser

    formats = load(folder)
    form, thinks = formats.tools["arrows"], formats.reasoning["musing"]
    tokenizer = ByteTokenizer(("<call>", "</call>"))
    output = (
        "(muse)Where?(/muse)\nI look.\n<call>get_weather\n- city -> Paris;\n- days -> 2;\n</call>"
    )
    reader = FormatParser(tokenizer, reasoning=thinks, tools=form, shapes=SHAPES, thinking=False)
    ids = tokenizer.encode(output, special=True)
    found, is_open = items(read(reader, ([token] for token in ids)))
    assert found == [
        {"reasoning": "Where?"},
        {"message": "I look."},
        {"call": "get_weather", "arguments": '{"city": "Paris", "days": 2}'},
    ]
    assert not is_open


def test_model_is_detected_by_the_mark(folder: Path) -> None:
    template = example()["arrows.jinja"]
    tokenizer = ByteTokenizer(("<call>", "</call>"))
    card = ModelCard(
        name="m", context_size=1000, chat_template=template, eos_token=END, fingerprint="f"
    )
    dialect = ChatDialect(card, tokenizer, formats=load(folder))
    assert dialect.tools.name == "arrows" and dialect.template_has_tools
    assert dialect.reasoning is not None and dialect.reasoning.name == "musing"
    check_dialect(dialect, tokenizer, fingerprint="f")
    assert ChatDialect(card, tokenizer).tools.name == "hermes"


def test_calls_are_constrained_to_their_schema(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from antiphon.dialects.grammar.builder import GrammarBuilder
    from antiphon.dialects.tools import collect_tools
    from antiphon.inference.conversation import Options, ToolChoice

    row = load(folder).tools["arrows"]
    _, tokenizer = grammar_builder()
    options = Options(tools=(TRIP,), tool_choice=ToolChoice("required"))
    created = GrammarBuilder(tokenizer, row, None).constraint(
        options, collect_tools(options, ()), False
    )
    answer = ConstrainedWriter(tokenizer, created)
    assert answer.may_write(write_calls(row, [("trip", {"city": "Oslo", "days": 2})]))
    assert not answer.may_write(write_calls(row, [("trip", {"city": "Oslo", "days": "two"})]))


def test_user_defined_row_precedes_and_replaces_built_in_rows(folder: Path) -> None:
    (folder / "own.toml").write_text(
        '[reasoning.think]\nopen = ["<t>"]\nclose = ["</t>"]\nmark = "<t>"\n', encoding="utf-8"
    )
    formats = load(folder)
    assert formats.reasoning["think"].open == ("<t>",)
    assert formats.detect("tools <t> <seed:think>")[0] == "think"
    assert formats.tools["hermes"].name == "hermes"


GOOD = """
[tools.x]
opens = {"<c>" = "name"}
mark = "<c>"
[tools.x.states.name]
reads = "name"
on = {":" = "arguments"}
[tools.x.states.arguments]
reads = "json"
[tools.x.written]
before = "<c>"
between = ":"
after = ""
"""


@pytest.mark.requirement("FM-OWN")
@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("[tools.x", "is not valid TOML"),
        ("[tool.x]\n", "tool is unknown; did you mean tools?"),
        ("tools = 1", "tools must be a table"),
        ("[tools]\nx = 1", "tools.x must be a table"),
        ('[reasoning.x]\nopen = ["<"]\nclose = []\nmark = "<"', "reasoning.x.close must name"),
        ('[reasoning.x]\nopen = "<"\nclose = []\nmark = "<"', "reasoning.x.open: Expected"),
        ('[reasoning.x]\nopen = ["<"]\nclose = [">"]\n', "reasoning.x.mark is missing"),
        ('[reasoning.x]\nopen = ["<"]\nclose = [">"]\nmark = "("', "x.mark is no pattern"),
        (GOOD.replace('mark = "<c>"', 'mark = "<c>"\nmarks = "x"'), "tools.x.marks is unknown"),
        (GOOD.replace('"arguments"}', '"argument"}'),
         "tools.x.states.name.on.:: there is no state 'argument'; did you mean arguments?"),
        (GOOD.replace('reads = "json"', 'reads = "jsn"'),
         "tools.x.states.arguments.reads: 'jsn' is nothing to read; did you mean json?"),
        (GOOD.replace('"arguments"}', "3}"), "tools.x.states.name.on.:: Expected str, got int"),
        (GOOD.replace('{":" = "arguments"}', '"arguments"'), "tools.x.states.name.on: Expected"),
        (GOOD.replace('between = ":"', ""), "tools.x.written.between is missing"),
        (GOOD.replace('reads = "name"', 'reads = "gap"'), "none reads the name of a call"),
        (GOOD.replace('before = "<c>"', 'before = "<d>"'),
         'tools.x.written: the states do not read such calls: "<d>look_up:'),
        (GOOD.replace('reads = "json"', 'reeds = "json"'), "states.arguments.reeds is unknown"),
        (GOOD.replace('{"<c>" = "name"}', "{}"), "tools.x.states.name: nothing leads there"),
        (GOOD.replace('{"<c>" = "name"}', '{"" = "name"}'), "a terminal must not be empty"),
        (GOOD.replace('reads = "json"', 'reads = "pairs"'), "tools.x.written.parameter is missing"),
        (GOOD.replace("after =", "afterwards ="), "tools.x.written.afterwards is unknown"),
        (GOOD.replace("[tools.x]", '[tools.x]\nname = "y"'), "tools.x.name is unknown"),
        (GOOD.replace("[tools.x]", '[tools.x]\nbare = "ab"'), "tools.x.bare must be one character"),
    ],
)  # fmt: skip
def test_errors_name_file_and_key(tmp_path: Path, wrong: str, expected: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(wrong, encoding="utf-8")
    with pytest.raises(SetupError) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(str(path))
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_valid_files_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD, encoding="utf-8")
    assert load(tmp_path).tool_format("x") is not None


def test_format_whose_key_is_not_its_field_name_is_loaded(tmp_path: Path) -> None:
    text = '[reasoning.x]\nopen = ["<"]\nclose = [">"]\nmark = "<"\nkept = true\n'
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    assert load(tmp_path).reasoning["x"].keeps_reasoning
    (tmp_path / "mine.toml").write_text(text.replace("kept", "keeps_reasoning"), encoding="utf-8")
    with pytest.raises(SetupError, match=r"reasoning\.x\.keeps_reasoning is unknown"):
        load(tmp_path)


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="formats_dir"):
        load(tmp_path / "nowhere")


@pytest.mark.requirement("FM-NAMES")
def test_aliases_of_other_servers_are_accepted() -> None:
    from antiphon.dialects.formats.registry import SHIPPED

    for name, row in (("glm47", "glm45"), ("qwen25", "hermes"), ("jamba", "hunyuan_a13b")):
        form = SHIPPED.tool_format(name)
        assert form is not None and form.name == row
    thinks = SHIPPED.reasoning_format("deepseek_r1")
    assert thinks is not None and thinks.name == "think"
    assert SHIPPED.reasoning_format("identity") is None is SHIPPED.tool_format("")
    with pytest.raises(SetupError, match="unknown format 'glm99'"):
        SHIPPED.tool_format("glm99")
