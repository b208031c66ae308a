"""The dialect and the formats of a model, chosen by its files, its settings and entry points."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.dialects.base import (
    DialectOptions,
    DialectPlugin,
    ReasoningRetention,
    Rendered,
)
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.dialects.formats.registry import Formats
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.harmony.dialect import HarmonyDialect
from antiphon.engines.base import Capabilities
from antiphon.errors import SetupError
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import ModelCard, Tokenizer
from antiphon.models.dialect_factories import available_formats, create_dialect
from antiphon.models.factories import backend_factory
from antiphon.support import plugins
from tests.dialects import gpt_oss

CACHE = Path.home() / ".cache" / "antiphon" / "models"


def dialect_of(architecture: str | None = "gpt-oss", **model: Any) -> object:
    card = replace(gpt_oss.CARD, architecture=architecture)
    engine: Any = SimpleNamespace(
        card=card, tokenizer=gpt_oss.tokenizer(), capabilities=Capabilities()
    )
    settings = Settings(cache_dir=CACHE)
    return create_dialect(engine, "m", Model(source="m", **model), settings)


@pytest.mark.requirement("VN-4")
def test_gpt_oss_uses_harmony(tmp_path: Path) -> None:
    assert isinstance(dialect_of("gpt-oss"), HarmonyDialect)  # the name in GGUF files
    assert isinstance(dialect_of("gpt_oss"), HarmonyDialect)  # the name at Hugging Face
    assert isinstance(dialect_of("llama"), ChatDialect)
    assert isinstance(dialect_of(None), ChatDialect)


def test_settings_choose_the_dialect(tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert isinstance(dialect_of(dialect="chat"), ChatDialect)
    assert isinstance(dialect_of(template=template), ChatDialect)
    assert isinstance(dialect_of("llama", dialect="harmony"), HarmonyDialect)


@pytest.mark.parametrize("option", ["template", "reasoning_format", "tool_format"])
def test_options_harmony_does_not_use_are_refused(option: str) -> None:
    with pytest.raises(SetupError, match=f"model m: the dialect harmony does not use {option}"):
        dialect_of(dialect="harmony", **{option: "think"})


def test_other_servers_names_of_harmony_are_accepted() -> None:
    dialect = dialect_of("gpt-oss", tool_format="openai", reasoning_format="openai_gptoss")
    assert isinstance(dialect, HarmonyDialect)


def test_vocabulary_folder_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"does not contain o200k_base\.tiktoken"):
        dialect_of(vocabulary=tmp_path)


@pytest.mark.parametrize("engine", ["auto", "llama", "llama_embeddings", "openvino", "vllm"])
def test_url_as_source_of_a_local_engine_names_the_remote_engines(engine: str) -> None:
    model = Model(source="http://127.0.0.1:9/v1", engine=engine)
    with pytest.raises(SetupError, match=r"model fake: .*set engine to .*: chat_completions, "):
        backend_factory("fake", model)


_IMPORT = """
import asyncio, sys, threading
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.models.factories import backend_factory

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "antiphon.engines.llama.engine":
            print(threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Finder())
model = Model(source="/nowhere.gguf", engine="llama")
try:
    asyncio.run(backend_factory("m", model)("m", model, Settings(), None))
except SetupError:
    print("refused")
"""


def test_engine_is_imported_while_the_event_loop_goes_on() -> None:
    ran = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True)
    assert ran.stdout.split() == ["False", "refused"], ran.stderr


# --- entry points --------------------------------------------------------------------------------


class _OtherDialect:
    """A dialect of another package: it records its arguments."""

    supports_images = False

    def __init__(self, card: ModelCard, tokenizer: Tokenizer, options: DialectOptions) -> None:
        self.card = card
        self.options = options

    def render(self, conversation: Conversation, options: Options) -> Rendered:
        raise NotImplementedError

    def reasoning_retention(self, options: Options) -> ReasoningRetention:
        return "current_turn"


OTHER_DIALECT: DialectPlugin = _OtherDialect
OTHER_FORMATS: DialectPlugin = Formats(
    tools={"quill": replace(TOOLS["hermes"], name="quill", aliases=("pen",), mark="QUILL")},
    reasoning={},
)


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points of the group ``antiphon.dialects``, as if packages had installed them."""
    points = [
        EntryPoint("quill", f"{__name__}:OTHER_DIALECT", "antiphon.dialects"),
        EntryPoint("quill_formats", f"{__name__}:OTHER_FORMATS", "antiphon.dialects"),
    ]

    def installed(group: str) -> EntryPoints:
        assert group == "antiphon.dialects"
        return EntryPoints(points)

    monkeypatch.setattr(plugins, "entry_points", installed)
    return points


@pytest.mark.usefixtures("entry_points")
def test_dialect_of_another_package_is_found_by_name() -> None:
    dialect = dialect_of("llama", dialect="quill", tool_format="pen", template_kwargs={"a": 1})
    assert isinstance(dialect, _OtherDialect)
    assert dialect.card.architecture == "llama"
    assert dialect.options.template_kwargs == {"a": 1}
    assert dialect.options.formats.tools["quill"].mark == "QUILL"


@pytest.mark.usefixtures("entry_points")
@pytest.mark.parametrize("name", ["quill", "pen"])
def test_tool_format_of_another_package_is_found_by_name(name: str) -> None:
    dialect = dialect_of("llama", tool_format=name)
    assert isinstance(dialect, ChatDialect)
    assert dialect.tools.name == "quill"


@pytest.mark.usefixtures("entry_points")
def test_format_of_another_package_is_detected_from_the_template(tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("QUILL{% for m in messages %}{{ m.content }}{{ tools }}{% endfor %}")
    dialect = dialect_of("llama", template=template)
    assert isinstance(dialect, ChatDialect)
    assert dialect.tools.name == "quill"


@pytest.mark.usefixtures("entry_points")
def test_operators_formats_precede_those_of_packages(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        '[reasoning.own]\nopen = ["<o>"]\nclose = ["</o>"]\nmark = ""'
    )
    formats = available_formats(Settings(formats_dir=tmp_path))
    assert next(iter(formats.reasoning)) == "own"
    assert "quill" in formats.tools
    assert "hermes" in formats.tools


@pytest.mark.usefixtures("entry_points")
def test_unknown_dialect_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SetupError) as raised:
        dialect_of(dialect="quil")
    assert str(raised.value).startswith(
        "model m: dialect: 'quil' is unknown: use chat, harmony, quill, or install"
    ), "formats are no dialects"


@pytest.mark.usefixtures("entry_points")
def test_formats_are_refused_as_a_dialect() -> None:
    with pytest.raises(SetupError, match="model m: the entry point 'quill_formats'"):
        dialect_of(dialect="quill_formats")


def test_entry_point_that_cannot_be_loaded_is_refused(entry_points: list[EntryPoint]) -> None:
    entry_points[:] = [EntryPoint("broken", f"{__name__}:ABSENT", "antiphon.dialects")]
    with pytest.raises(SetupError, match=r".*broken.*ABSENT"):
        dialect_of("llama")
