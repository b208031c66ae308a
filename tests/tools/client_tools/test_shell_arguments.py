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


def told(steps: Sequence[ToolProgress]) -> list[str]:
    """The commands, each from ``added`` by its deltas to ``done``."""
    found: list[str] = []
    said: list[str] | None = None
    for step in steps:
        assert step.fields["command_index"] == len(found)
        if step.name == "command.added":
            assert said is None
            said = []
        elif step.name == "command.delta":
            assert said is not None and step.fields["delta"]
            said.append(step.fields["delta"])
        else:
            assert said is not None and step.fields["command"] == "".join(said)
            found.append(step.fields["command"])
            said = None
    assert said is None
    return found


def written(text: str, cuts: Sequence[int] = ()) -> list[ToolProgress]:
    writing = CommandObserver()
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    steps = [step for piece in pieces for step in writing.feed(piece)]
    return [*steps, *writing.finish(text)]


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
def test_what_is_told_is_what_is_run(text: str) -> None:
    whole = shell_action(text)["commands"]
    assert told(written(text)) == whole
    assert told(written(text, range(len(text)))) == whole


def test_they_are_told_while_they_are_written() -> None:
    writing = CommandObserver()
    steps = [list(writing.feed(piece)) for piece in ('{"commands": ["l', "s -", 'a", "p', "wd")]
    names = [[step.name.removeprefix("command.") for step in each] for each in steps]
    assert names == [["added", "delta"], ["delta"], ["delta", "done", "added", "delta"], ["delta"]]
    (done,) = writing.abort()
    assert (done.name, done.fields["command"]) == ("command.done", "pwd")
    assert list(writing.abort()) == []


@given(st.lists(st.text(), max_size=4), st.lists(st.integers(0, 400), max_size=12), st.booleans())
def test_however_it_is_cut_the_same_is_told(
    commands: list[str], cuts: list[int], plain: bool
) -> None:
    text = json.dumps({"commands": commands}, ensure_ascii=plain)
    assert told(written(text, cuts)) == shell_action(text)["commands"]


@given(
    st.text(st.sampled_from('{}[]",:\\ \ncommands12u')), st.lists(st.integers(0, 99), max_size=6)
)
def test_whatever_is_written_every_command_has_its_end(text: str, cuts: list[int]) -> None:
    told(written(text, cuts))
    told(written(f'{{"commands": ["{text}', cuts))


def test_long_commands_cost_what_they_are() -> None:
    writing: Any = CommandObserver()
    list(writing.feed('{"commands": ["'))
    for _ in range(2000):
        list(writing.feed("x" * 50))
        assert len(writing._rest) < 100
