"""The engine ``replay``, for tests of clients against a real server. It runs no model: it returns
texts from a file. A dialect parses these texts like the output of a model.

The file contains scenes. A scene has a text ``when`` and a list of turns. A turn is the raw text of
one answer of the model. The engine uses a scene if the prompt contains its ``when``. It returns the
first turn if the prompt contains no answer of the model after ``when``, the second turn if the
prompt contains one such answer, and so on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from antiphon.backends.base import Backend
from antiphon.backends.on_demand import ProgressCallback
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.errors import BackendError, SetupError
from antiphon.inference.tokens import ModelCard
from antiphon.models.factories import local_backend

from .engine import Reply, ScriptedEngine
from .tokenizer import END

__all__ = ["Scene", "replay", "scene_player"]

_ANSWER = "<|im_start|>assistant\n"
_SPECIAL = ("<|im_start|>", "<|im_end|>")
#: The context is large because coding agents send 60 kB of instructions, and each byte is a token
#: here.
_CONTEXT_SIZE = 1_000_000
#: Bytes per chunk. Smaller chunks would give more events, but would not test more.
_CHUNK = 16


class Scene(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scene: the texts that the engine returns for prompts that contain ``when``.

    ``turns``: the raw texts of the model's answers, in order. Answers after the last turn repeat
    the last turn. If a turn begins with ``!``, the engine raises an error instead, and the rest of
    the turn is the error message.
    """

    turns: Annotated[tuple[str, ...], Meta(min_length=1)]
    when: str = ""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a TOML file for the engine ``replay``. ``scenes``: the texts that the engine
    returns. ``pause_s``: seconds between two chunks of a reply, for tests that look at an
    incomplete reply."""

    scenes: tuple[Scene, ...]
    pause_s: Annotated[float, Meta(ge=0)] = 0


def scene_player(scenes: tuple[Scene, ...]) -> Callable[[str], Reply]:
    """Return a function that gets the text of a prompt and returns the engine's reply.

    The function uses the scene whose ``when`` is in the prompt. If there are several such scenes,
    it uses the scene whose ``when`` is nearest to the end of the prompt. A scene with an empty
    ``when`` is used only if no other scene fits. The function then counts the model's answers in
    the prompt after ``when``. If there are ``n`` answers, it returns the turn with index ``n``.
    """

    def play(prompt: str) -> Reply:
        at, scene = max(
            ((prompt.rfind(scene.when), scene) for scene in scenes if scene.when in prompt),
            key=lambda found: (len(found[1].when) > 0, found[0]),
            default=(0, None),
        )
        if scene is None:
            return BackendError("There is no scene for this prompt.")
        answered = prompt.count(_ANSWER, at) - 1  # the last marker begins this answer
        turn = scene.turns[min(max(answered, 0), len(scene.turns) - 1)]
        return BackendError(turn[1:]) if turn.startswith("!") else turn

    return play


async def replay(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build the backend of a model of the engine ``replay``. The model's ``source`` is a TOML file
    with the texts that the engine returns, in tables ``[[scenes]]``. The model's other settings
    choose the dialect, as for any engine. Raises ``SetupError``."""
    try:
        read = tomllib.loads(Path(model.source).read_text(encoding="utf-8"))
        file = msgspec.convert(read, _File)
    except (OSError, ValueError) as error:  # msgspec's and tomllib's errors are ValueErrors
        raise SetupError(f"model {name}: {model.source} cannot be played: {error}") from None
    card = ModelCard(
        name=name,
        context_size=model.context_size or _CONTEXT_SIZE,
        eos_token=END,
        fingerprint="bytes",
    )
    engine = ScriptedEngine(
        scene_player(file.scenes),
        special=_SPECIAL,
        card=card,
        chunk=_CHUNK,
        wait_s=file.pause_s,
    )
    return await local_backend(engine, name, model, settings)
