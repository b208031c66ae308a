"""Scenes: selection of the scene and its turn, and loading them into a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.backends.local.backend import LocalBackend
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.errors import BackendError, SetupError
from antiphon.inference.conversation import Conversation, Options
from antiphon.testing.delta_reader import read_reply
from antiphon.testing.replay import Scene, replay, scene_player
from antiphon.testing.replies import batches_of
from antiphon.wire.items import FunctionCall, InputText, Item, Message
from antiphon.wire.tools import Function

PLAY = scene_player(
    (
        Scene(turns=("Hello.",)),
        Scene(when="cook", turns=("One.", "Two.")),
        Scene(when="sing", turns=("!Hoarse.",)),
    )
)


def prompt(*turns: str) -> str:
    return "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"


def test_scene_named_last_is_played() -> None:
    assert PLAY(prompt("user\nhi")) == "Hello."
    assert PLAY(prompt("user\nhi", "assistant\nHello.", "user\nnow cook")) == "One."
    sung = PLAY(prompt("user\ncook", "assistant\nOne.", "user\nsing"))
    assert isinstance(sung, BackendError) and sung.message == "Hoarse."


def test_turns_are_played_in_order_and_the_last_repeats() -> None:
    assert PLAY(prompt("user\ncook", "assistant\nOne.", "user\nand?")) == "Two."
    again = prompt("user\ncook", "assistant\nOne.", "user\nand?", "assistant\nTwo.", "user\nand?")
    assert PLAY(again) == "Two."


def test_without_a_scene_the_engine_fails() -> None:
    assert isinstance(scene_player((Scene(when="cook", turns=("One.",)),))("hi"), BackendError)


async def played(folder: Path, text: str) -> LocalBackend:
    (folder / "scenes.toml").write_text(text)
    model = Model(source=str(folder / "scenes.toml"), engine="replay")
    backend = await replay("tiny", model, Settings(), None)
    assert isinstance(backend, LocalBackend)
    return backend


async def test_calls_are_parsed_by_the_dialect(tmp_path: Path) -> None:
    output = """'<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'"""
    backend = await played(tmp_path, f"[[scenes]]\nturns = [{output}]\n")
    items: tuple[Item, ...] = (Message(id="m", role="user", content=(InputText(text="1?"),)),)
    options = Options(tools=(Function(name="add"),))
    reply = await backend.prepare(Conversation(items), options)
    reading = read_reply([delta async for known in batches_of(reply) for delta in known])
    (call,) = reading.items
    assert isinstance(call.item, FunctionCall) and call.item.name == "add"
    assert call.text["text"] == '{"a": 1}'


@pytest.mark.parametrize(
    "text", ["no toml", "x = 1", "[[scenes]]\nturn = []", "[[scenes]]", "[[scenes]]\nturns=[]"]
)
async def test_invalid_file_is_reported_in_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(SetupError, match=r"model tiny: .* cannot be played: ") as caught:
        await played(tmp_path, text)
    assert "\n" not in str(caught.value)


async def test_missing_file_raises_setup_error(tmp_path: Path) -> None:
    model = Model(source=str(tmp_path / "none.toml"), engine="replay")
    with pytest.raises(SetupError, match="cannot be played"):
        await replay("tiny", model, Settings(), None)


async def test_dialect_of_the_settings_writes_the_prompt(tmp_path: Path) -> None:
    """The engine has the settings of every other engine."""
    file = tmp_path / "scenes.toml"
    file.write_text('[[scenes]]\nturns = ["Hello."]\n')
    model = Model(source=str(file), engine="replay", dialect="no_such_dialect")
    with pytest.raises(SetupError, match="no_such_dialect"):
        await replay("tiny", model, Settings(), None)
