"""Every format, by its stories: whole, one token at a time, in random chunks, truncated."""

from __future__ import annotations

import json
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from antiphon.dialects.formats.reasoning_formats import REASONING
from antiphon.dialects.formats.registry import DETECTION_NAMES, HARMONY_NAMES, SHIPPED
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.errors import SetupError
from tests.dialects.replies import Story, items, read, stories
from tests.hypothesis_settings import is_fuzz

STORIES = stories()
TEXTS = ("reasoning", "message", "input", "arguments")
each_story = pytest.mark.parametrize("story", STORIES, ids=[story.name for story in STORIES])


def _parsed(item: dict[str, Any]) -> dict[str, Any]:
    """White space of arguments is the model's or ours: no matter."""
    try:
        return item | {"arguments": json.loads(item["arguments"])}
    except (KeyError, ValueError):
        return item


@pytest.mark.requirement("API-CALL-FORMATS", "VN-5")
@each_story
def test_story_gives_its_items(story: Story) -> None:
    found, is_open = items(read(story.parser(), [story.ids()]))
    assert [_parsed(i) for i in found] == [_parsed(i) for i in story.items]
    assert not is_open


@each_story
def test_single_tokens_give_the_same_items(story: Story) -> None:
    whole = read(story.parser(), [story.ids()])
    assert read(story.parser(), ([token] for token in story.ids())) == whole


@pytest.mark.requirement("API-CALL-FORMATS")
@each_story
def test_random_chunks_give_the_same_items(story: Story) -> None:
    whole = read(story.parser(), [story.ids()])
    dice = random.Random(story.name)
    ids = story.ids()
    for _ in range(8):
        cuts = sorted(dice.sample(range(len(ids)), min(len(ids), dice.randint(1, 9))))
        chunks = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
        assert read(story.parser(), chunks) == whole


@pytest.mark.hypothesis
@pytest.mark.requirement("D-70")
@each_story
def test_truncated_reply_gives_a_prefix_of_the_items(story: Story) -> None:
    """What was said so far stands, and the item that was cut is left open."""
    ids = story.ids()
    whole, _ = items(read(story.parser(), [ids]))
    # Every seventh place; another story of the format is cut at others. All of them: `make fuzz`.
    first, step = (0, 1) if is_fuzz() else (STORIES.index(story) % 7, 7)
    for cut in range(first, len(ids), step):
        found, is_open = items(read(story.parser(), [ids[:cut]], "length"))
        if is_open:
            last = found.pop()
            full = whole[len(found)] if len(found) < len(whole) else {}
            assert _is_begun(last, full) or _is_undecided(last, full, story)
        assert found == whole[: len(found)]


def _is_begun(item: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Whether the item is the beginning of ``whole``."""
    return item.keys() == whole.keys() and all(
        whole[key].startswith(text.rstrip("\ufffd").rstrip() if key in TEXTS else text)
        for key, text in item.items()
    )


def _is_undecided(item: dict[str, Any], whole: dict[str, Any], story: Story) -> bool:
    """Whether the text ends in what could have become markup, had it not been cut: text it is. In
    reasoning that was not closed yet, and in an answer of JSON, this is a whole call. Arguments may
    end in a key that could have been a wrapper.
    """
    if "call" in item:
        return item["call"] == whole.get("call") and item["arguments"] in story.output
    ((kind, text),) = item.items()
    is_draft = (
        (kind == "reasoning" or text[0] in "{[`")
        and text.startswith(whole.get(kind, ""))
        and text in story.output
    )
    return is_draft or any(
        text[n:].rstrip("\ufffd").rstrip() in story.output
        and whole.get(kind, "").startswith(text[:n].rstrip())
        for n in range(max(0, len(text) - 60), len(text))
    )


def test_every_format_has_a_story() -> None:
    assert {story.calls for story in STORIES} - {None} == TOOLS.keys()
    assert {story.thinking for story in STORIES} - {None} == REASONING.keys()


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_every_state_exists_and_is_reachable(name: str) -> None:
    """Every state that is led to exists, and every state is led to."""
    form = TOOLS[name]
    led_to = {*form.opens.values(), form.bare_state, form.begins} - {""}
    for state in form.states.values():
        led_to |= {*state.on.values(), *state.peek.values(), state.then}
    assert led_to - {"start", "text", "thinking"} == form.states.keys()
    assert form.name == name


@pytest.mark.parametrize(
    ("template", "special", "found"),
    [
        ("{{ messages }}", (), (None, None)),
        ("{% if tools %}<tool_call>{% endif %} split('</think>')", (), ("think", "hermes")),
        ("{% if tools %}<tool_call>\n<function={% endif %}", (), (None, "qwen3_coder")),
        ("<tool_call> in an example, but no t00ls", (), (None, None)),
        ("{{ tools }}{{ '<arg_key>' }}<tool_call></think>", (), ("think", "glm45")),
        ("{{ tools }} <｜tool▁sep｜>' + name + '\n```json", (), (None, "deepseek_v3")),
        ("{{ tools }}<｜tool▁sep｜></think>", (), ("think", "deepseek_v31")),
        ("{{ m.tool_calls }}<｜tool▁sep｜>", (), (None, "deepseek_v31")),
        ("{{ tools }}'Use: [func_name1(' <|header_start|>", (), (None, "llama4_pythonic")),
        ("{{ tools }}'Use: [func_name1(' <|eot_id|>", (), (None, "pythonic")),
        ("{{ tools }}[TOOL_CALLS]' + name + '[ARGS]'", (), (None, "mistral_v13")),
        ("{{ tools }}[TOOL_CALLS]' + name + '[CALL_ID]' + id", (), (None, "mistral_v11")),
        ("{{ tools }}[TOOL_CALLS] [", ("[THINK]", "[/THINK]"), ("mistral", "mistral")),
        ("{{ tools }}functools[", (), (None, "phi4_mini")),
        ("{{ tools }}<parameter=example_parameter_1>value_1</parameter>", (), (None, "mimo")),
        ("{{ tools }}'<tool_call><function=' ~ tool_call.name ~ '>'", (), (None, "mimo")),
        ("{{ tools }}<function=x>\n<parameter=example_parameter_1>\nv", (), (None, "qwen3_coder")),
        ('{{ tools }}Action:\n```json\n[ "parameters": {}', (), (None, None)),
        ('{{ tools }} {"name": function name, "parameters": dictionary', (), (None, "llama3_json")),
        ('{{ tools }} '"'"'{"name": "'"'"' "parameters": ', (), (None, "llama3_json")),
        ("{{ tools }}", ("<|tool_calls_section_begin|>", "</think>"), ("think", "kimi_k2")),
        ("{{ tools }} <|tool_call>call:", ("<|channel>",), ("gemma4", "gemma4")),
    ],
)  # fmt: skip
def test_formats_are_detected_from_template_and_special_tokens(
    template: str, special: tuple[str, ...], found: tuple[str | None, str | None]
) -> None:
    assert SHIPPED.detect(template, special) == found


PARSERS = tomllib.loads((Path(__file__).parents[1] / "parsers.toml").read_text(encoding="utf-8"))


REGISTRIES = tomllib.loads(
    (Path(__file__).parents[1] / "registries.toml").read_text(encoding="utf-8")
)


@pytest.mark.requirement("FM-NAMES")
@pytest.mark.parametrize("server", REGISTRIES)
@pytest.mark.parametrize("kind", ["tools", "reasoning"])
def test_names_in_the_registries_of_other_servers_resolve(server: str, kind: str) -> None:
    """``python -m tests.format_suites.names`` writes the names of their newest versions."""
    find = SHIPPED.tool_format if kind == "tools" else SHIPPED.reasoning_format
    for name in REGISTRIES[server][kind]:
        normalized = re.sub(r"[\W_]+", "_", name.lower())
        assert normalized in HARMONY_NAMES | DETECTION_NAMES or find(name) is not None, name


@pytest.mark.requirement("FM-NAMES")
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in PARSERS for name in PARSERS[kind]]
)
def test_names_of_other_servers_resolve(kind: str, name: str) -> None:
    row, named = PARSERS[kind][name], getattr(SHIPPED, f"{kind.rstrip('s')}_format")
    if row == "found":
        assert name in DETECTION_NAMES
    elif row == "harmony":
        assert name.lower().replace("-", "_") in HARMONY_NAMES
        with pytest.raises(SetupError, match='dialect = "harmony"'):
            named(name)
    else:
        found = named(name)
        assert (found and found.name) == (row or None)
