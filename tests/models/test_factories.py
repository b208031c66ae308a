"""Which dialect a model is spoken to in, by what its files and its settings say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.dialects.harmony.dialect import HarmonyDialect
from antiphon.engines.base import Capabilities
from antiphon.errors import SetupError
from antiphon.models import factories
from tests.dialects import gpt_oss

CACHE = Path.home() / ".cache" / "antiphon" / "models"


def spoken(architecture: str | None = "gpt-oss", **said: Any) -> object:
    card = replace(gpt_oss.CARD, architecture=architecture)
    engine: Any = SimpleNamespace(
        card=card, tokenizer=gpt_oss.tokenizer(), capabilities=Capabilities()
    )
    settings = Settings(cache_dir=CACHE)
    return factories._dialect(engine, Model(source="m", **said), settings)


@pytest.mark.requirement("VN-4")
def test_gpt_oss_is_spoken_to_in_harmony(tmp_path: Path) -> None:
    assert isinstance(spoken("gpt-oss"), HarmonyDialect)  # as GGUF has it
    assert isinstance(spoken("gpt_oss"), HarmonyDialect)  # as Hugging Face has it
    assert isinstance(spoken("llama"), ChatDialect)
    assert isinstance(spoken(None), ChatDialect)


def test_the_operator_may_choose(tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert isinstance(spoken(dialect="chat"), ChatDialect)
    assert isinstance(spoken(template=template), ChatDialect)
    assert isinstance(spoken("llama", dialect="harmony"), HarmonyDialect)


@pytest.mark.parametrize("option", ["template", "reasoning_format", "tool_format"])
def test_what_has_no_meaning_in_harmony_is_named(option: str) -> None:
    with pytest.raises(SetupError, match=f"spoken to in harmony: {option} has no meaning"):
        spoken(dialect="harmony", **{option: "think"})


def test_what_other_servers_call_harmony_is_no_contradiction() -> None:
    said = spoken("gpt-oss", tool_format="openai", reasoning_format="openai_gptoss")
    assert isinstance(said, HarmonyDialect)


def test_a_folder_without_the_vocabulary_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"holds no o200k_base\.tiktoken"):
        spoken(vocabulary=tmp_path)
