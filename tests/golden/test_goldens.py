"""The goldens: events and response match, for any chunking of the model's output."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.wire.response import Response
from tests.conformance.oracle import check_types
from tests.golden.story import FOLDER, Story, play, read, render_events, render_response, write

_SPECIAL = re.compile(r"(<\|[a-z_]+\|>|</?think>|\[TOOL_CALLS\])")
STORIES = sorted(FOLDER.glob("*.txt"))


def split(chunks: Sequence[str], is_whole: bool) -> list[str]:
    """Return the output in one chunk, or one character per chunk. Special tokens stay whole."""
    text = [chunk for chunk in chunks if not chunk.startswith("!")]
    failure = [chunk for chunk in chunks if chunk.startswith("!")]
    joined = "".join(text)
    if is_whole:
        return [joined, *failure] if joined else failure
    pieces: list[str] = []
    for piece in _SPECIAL.split(joined):
        pieces += [piece] if _SPECIAL.fullmatch(piece) else list(piece)
    return [*(piece for piece in pieces if piece), *failure]


@pytest.fixture(params=STORIES, ids=lambda path: path.stem)
def story(request: pytest.FixtureRequest) -> Story:
    return read(request.param)


async def test_story_gives_its_events_and_in_any_chunks_the_same_response(
    story: Story, rewrite: bool
) -> None:
    played = await play(story, story.turns)
    if rewrite:
        write(story, played)
        return
    assert render_events(played.events) == story.events
    assert render_response(played.response) == story.response.rstrip("\n")
    for event in played.events:
        line = msgspec.json.encode(event)
        check_types(msgspec.json.decode(line), line)
    for is_whole in (True, False):
        again = await play(story, [split(chunks, is_whole) for chunks in story.turns])
        assert _renumbered(again.response) == _renumbered(played.response), f"{is_whole=}"


def _renumbered(response: Response) -> str:
    """Return the response with ids numbered by appearance: parallel calls start in any order."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found.group(), f'"{found.group(1)}_{len(numbers)}"')

    text = msgspec.json.encode(replace(response, usage=None)).decode()
    return re.sub(r'"([a-z]+)_\d+"', number, text)


def test_there_are_enough_stories() -> None:
    assert len(STORIES) >= 40


def test_preamble_streams_as_a_message() -> None:
    preamble = read(FOLDER / "harmony_preamble_then_call.txt")
    assert 'output_text.delta                msg_3 @0.0 "Let me look."' in preamble.events
    assert '"phase": "commentary"' in preamble.response
