"""Commands as a model writes them, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.tools.base import ToolProgress
from antiphon.tools.client_tools.shell_arguments import CommandObserver, shell_action
from tests.retained import retained_bytes


def commands_of(steps: Sequence[ToolProgress]) -> list[str]:
    """The commands, each from ``added`` by its deltas to ``progress``."""
    commands: list[str] = []
    parts: list[str] | None = None
    for step in steps:
        assert step.fields["command_index"] == len(commands)
        if step.name == "command.added":
            assert parts is None
            parts = []
        elif step.name == "command.delta":
            assert parts is not None and step.fields["delta"]
            parts.append(step.fields["delta"])
        else:
            assert parts is not None and step.fields["command"] == "".join(parts)
            commands.append(step.fields["command"])
            parts = None
    assert parts is None
    return commands


def observe(text: str, cuts: Sequence[int] = ()) -> list[ToolProgress]:
    observer = CommandObserver()
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    steps = [step for piece in pieces for step in observer.feed(piece)]
    return [*steps, *observer.finish(text)]


@pytest.mark.parametrize(
    "text",
    [
        '{"commands": ["ls", "cat \\"a b\\"", "echo \\u00e9\\ud83d\\ude00"], "timeout_ms": 5}',
        ' { "commands" : [ "ls" , "pwd" ] }',
        '{"commands": "ls"}',
        '{"command": ["ls"]}',
        '{"timeout_ms": 5, "commands": ["ls"]}',
        '{"commands": ["", ""]}',
        '{"commands": []}',
        '{"commands": ["a\\ud800"]}',
        '["ls"]',
        "ls -a",
        '"ls"',
        "",
        "{",
        "null",
    ],
)
def test_streamed_commands_equal_parsed_commands(text: str) -> None:
    whole = shell_action(text)["commands"]
    assert commands_of(observe(text)) == whole
    assert commands_of(observe(text, range(len(text)))) == whole


def test_commands_stream_while_arguments_arrive() -> None:
    observer = CommandObserver()
    steps = [list(observer.feed(piece)) for piece in ('{"commands": ["l', "s -", 'a", "p', "wd")]
    names = [[step.name.removeprefix("command.") for step in each] for each in steps]
    assert names == [["added", "delta"], ["delta"], ["delta", "done", "added", "delta"], ["delta"]]
    (progress,) = observer.abort()
    assert (progress.name, progress.fields["command"]) == ("command.done", "pwd")
    assert list(observer.abort()) == []


@given(st.lists(st.text(), max_size=4), st.lists(st.integers(0, 400), max_size=12), st.booleans())
def test_chunking_does_not_change_the_commands(
    commands: list[str], cuts: list[int], ensure_ascii: bool
) -> None:
    text = json.dumps({"commands": commands}, ensure_ascii=ensure_ascii)
    assert commands_of(observe(text, cuts)) == shell_action(text)["commands"]


@given(
    st.text(st.sampled_from('{}[]",:\\ \ncommands12u')), st.lists(st.integers(0, 99), max_size=6)
)
def test_any_text_closes_every_command(text: str, cuts: list[int]) -> None:
    commands_of(observe(text, cuts))
    commands_of(observe(f'{{"commands": ["{text}', cuts))


def test_buffer_stays_small_for_long_commands() -> None:
    observer: Any = CommandObserver()
    list(observer.feed('{"commands": ["'))
    for _ in range(2000):
        list(observer.feed("x" * 50))
    assert retained_bytes(observer) < 50_000, "the command itself has 100,000"
