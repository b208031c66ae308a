"""The goldens: what is told happens, and however the model's output is cut, the same comes out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.wire.response import Response
from tests.golden.story import FOLDER, Story, play, read, shown, told, write

_SPECIAL = re.compile(r"(<\|[a-z_]+\|>|</?think>|\[TOOL_CALLS\])")
STORIES = sorted(FOLDER.glob("*.txt"))


def split(chunks: Sequence[str], whole: bool) -> list[str]:
    """The same output in one chunk, or a character a chunk; special tokens stay whole."""
    text = [chunk for chunk in chunks if not chunk.startswith("!")]
    failure = [chunk for chunk in chunks if chunk.startswith("!")]
    joined = "".join(text)
    if whole:
        return [joined, *failure] if joined else failure
    pieces: list[str] = []
    for piece in _SPECIAL.split(joined):
        pieces += [piece] if _SPECIAL.fullmatch(piece) else list(piece)
    return [*(piece for piece in pieces if piece), *failure]


@pytest.fixture(params=STORIES, ids=lambda path: path.stem)
def story(request: pytest.FixtureRequest) -> Story:
    return read(request.param)


async def test_the_story_is_what_happens(story: Story, rewrite: bool) -> None:
    played = await play(story, story.turns)
    if rewrite:
        write(story, played)
        return
    assert told(played.events) == story.events
    assert shown(played.response) == story.response.rstrip("\n")


@pytest.mark.parametrize("whole", [True, False], ids=["one chunk", "a character a chunk"])
async def test_the_cuts_do_not_matter(story: Story, whole: bool) -> None:
    played = await play(story, story.turns)
    again = await play(story, [split(chunks, whole) for chunks in story.turns])
    assert _renumbered(again.response) == _renumbered(played.response)


def _renumbered(response: Response) -> str:
    """Ids are numbers here; which comes first is no matter where calls are begun side by side."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found.group(), f'"{found.group(1)}_{len(numbers)}"')

    said = msgspec.json.encode(replace(response, usage=None)).decode()
    return re.sub(r'"([a-z]+)_\d+"', number, said)


def test_there_are_enough_of_them() -> None:
    assert len(STORIES) >= 40


def test_a_preamble_streams_as_a_message() -> None:
    preamble = read(FOLDER / "harmony_preamble_then_call.txt")
    assert 'output_text.delta                msg_3 @0.0 "Let me look."' in preamble.events
    assert '"phase": "commentary"' in preamble.response
