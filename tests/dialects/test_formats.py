"""Every format, by its goldens: whole, a token at a time, cut at random, cut short."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.dialects.replies import Story, items, read, stories

STORIES = stories()
TEXTS = ("reasoning", "message", "input", "arguments")
each_story = pytest.mark.parametrize("story", STORIES, ids=[story.name for story in STORIES])


def _parsed(item: dict[str, Any]) -> dict[str, Any]:
    """White space of arguments is the model's or ours: no matter."""
    try:
        return item | {"arguments": json.loads(item["arguments"])}
    except (KeyError, ValueError):
        return item


@each_story
def test_whole(story: Story) -> None:
    found, is_open = items(read(story.parser(), [story.ids()]))
    assert [_parsed(i) for i in found] == [_parsed(i) for i in story.items]
    assert not is_open


@each_story
def test_a_token_at_a_time(story: Story) -> None:
    whole = read(story.parser(), [story.ids()])
    assert read(story.parser(), ([token] for token in story.ids())) == whole


@each_story
def test_cut_at_random(story: Story) -> None:
    whole = read(story.parser(), [story.ids()])
    dice = random.Random(story.name)
    ids = story.ids()
    for _ in range(20):
        cuts = sorted(dice.sample(range(len(ids)), min(len(ids), dice.randint(1, 9))))
        chunks = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
        assert read(story.parser(), chunks) == whole


@each_story
def test_cut_short_anywhere(story: Story) -> None:
    """What was said so far stands, and the item that was cut is left open."""
    ids = story.ids()
    whole, _ = items(read(story.parser(), [ids]))
    for cut in range(len(ids)):
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
    """Whether the text ends in what could have become markup, had it not been cut: text it is."""
    ((kind, text),) = item.items()
    return any(
        text[n:].rstrip("\ufffd").rstrip() in story.output
        and whole.get(kind, "").startswith(text[:n].rstrip())
        for n in range(max(0, len(text) - 60), len(text))
    )
