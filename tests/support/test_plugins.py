"""Plug-ins: entry points of installed packages for stores, sandboxes, tools and engines."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.bootstrap.app import open_app
from antiphon.bootstrap.attachments import open_reader
from antiphon.bootstrap.containers import ContainerDependencies, open_containers
from antiphon.config.load import load_settings
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.config.tables import SandboxSettings, WebSearchSettings
from antiphon.errors import SetupError
from antiphon.inference.conversation import Conversation, Options
from antiphon.limits.quotas import NO_QUOTAS
from antiphon.models.dialect_factories import create_dialect
from antiphon.models.factories import backend_factory
from antiphon.resources.skills import Skills
from antiphon.store import open_store
from antiphon.support.plugins import load_plugin, load_plugins, plugin_names
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.tools.containers.relay import ContainerRelay
from antiphon.wire.items import InputText, Message
from tests.harness import official_client

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "plugins"
PAGE = ROOT / "docs" / "embedding.md"


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    points: Mapping[str, Mapping[str, str]],
    **modules: str,
) -> None:
    """Install a package with these entry points (group → name → object) and modules."""
    info = folder / "fake_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-plugin\nVersion: 1.0\n")
    lines = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
        for group, names in points.items()
    )
    (info / "entry_points.txt").write_text("\n".join(lines))
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the package in ``examples/plugins``."""
    project = tomllib.loads((EXAMPLES / "pyproject.toml").read_text())["project"]
    install(tmp_path / "site", monkeypatch, project["entry-points"])
    monkeypatch.syspath_prepend(str(EXAMPLES))


async def sandbox_of(settings: Settings) -> Any:
    """Return the containers that ``open_containers`` yields."""
    opened = open_containers(
        settings,
        structlog.get_logger(),
        ContainerDependencies(
            uploads=None,  # type: ignore[arg-type]
            library=Skills(MemoryStore(), clock=lambda: 0.0, ids=lambda prefix: prefix),
            clock=lambda: 0.0,
            ids=lambda prefix: prefix,
            quotas=NO_QUOTAS,
            directory=MemoryStore().containers,
            relay=ContainerRelay(),
        ),
    )
    with capture_logs():
        async with opened as containers:
            return containers.registry


# --- registry ------------------------------------------------------------------------------------


def test_plugins_of_a_group_are_listed_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, {"antiphon.fake": {"b": "json:dumps", "a": "json:loads"}})
    assert plugin_names("antiphon.fake") == ("a", "b")
    assert dict(load_plugins("antiphon.fake")).keys() == {"a", "b"}
    assert load_plugin("antiphon.fake", "a", setting="x")("[1]") == [1]


def test_unknown_plugin_is_an_error_that_names_the_registered_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, {"antiphon.fake": {"mine": "json:dumps"}})
    with pytest.raises(SetupError) as raised:
        load_plugin("antiphon.fake", "other", setting="fake", built_in=("ours",))
    assert str(raised.value) == (
        "fake: 'other' is unknown: use ours, mine, or install a package that registers it as an"
        " entry point of antiphon.fake"
    )


@pytest.mark.parametrize("target", ["absent_module:x", "json:absent", "broken_plugin:x"])
def test_plugin_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    points = {"antiphon.fakes": {"mine": target}}
    install(tmp_path, monkeypatch, points, broken_plugin="1 / 0")
    with pytest.raises(SetupError, match="fake mine cannot be loaded: "):
        load_plugin("antiphon.fakes", "mine", setting="fake")


# --- stores --------------------------------------------------------------------------------------


async def test_store_plugin_is_found_by_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from antiphon.testing.memory_store.store import MemoryStore\n"
        "async def open_store(url):\n"
        "    store = MemoryStore()\n"
        "    store.url = url\n"
        "    return store\n"
    )
    points = {"antiphon.stores": {"fake": "fake_store:open_store"}}
    install(tmp_path, monkeypatch, points, fake_store=source)
    store: Any = await open_store("fake://u:secret@host/db")
    assert isinstance(store, MemoryStore) and store.url == "fake://u:secret@host/db"
    with pytest.raises(SetupError) as raised:
        await open_store("other://u:secret@host/db")
    message = str(raised.value)
    assert message.startswith("store: 'other' is unknown: use memory:, sqlite:PATH, a path,")
    assert "fake, or install" in message and "secret" not in message


# --- sandboxes -----------------------------------------------------------------------------------

SANDBOX = """
from antiphon.errors import SetupError
from antiphon.testing.sandbox import FakeSandbox

async def open_sandbox(settings):
    options = settings.tool_options["fake"]
    if options["broken"]:
        raise SetupError("the fake sandbox is broken")
    return FakeSandbox(None)
"""


async def test_sandbox_plugin_is_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"antiphon.sandboxes": {"fake": "fake_sandbox:open_sandbox"}}
    install(tmp_path, monkeypatch, points, fake_sandbox=SANDBOX)
    options: dict[str, Any] = {"fake": {"broken": False}}
    settings = Settings(sandbox=SandboxSettings(kind="fake"), tool_options=options)
    assert await sandbox_of(settings) is not None
    with capture_logs() as logs:
        async with open_reader(settings, structlog.get_logger()) as reader:
            assert reader is None, "documents need bubblewrap"
    assert [line["sandbox"] for line in logs] in (["fake"], [])
    options["fake"]["broken"] = True
    with pytest.raises(SetupError, match="the fake sandbox is broken"):
        await sandbox_of(settings)


async def test_unknown_sandbox_is_an_error_that_names_the_registered_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, {"antiphon.sandboxes": {"fake": "fake_sandbox:open_sandbox"}})
    with pytest.raises(
        SetupError, match="'docker' is unknown: use auto, off, bubblewrap, kubernetes, fake"
    ):
        await sandbox_of(Settings(sandbox=SandboxSettings(kind="docker")))


# --- the examples of docs/embedding.md ------------------------------------------------------------


def blocks_on_the_page(title: str) -> list[str]:
    """Return the TOML blocks of the page that have this title."""
    page = PAGE.read_text(encoding="utf-8")
    return re.findall(rf'```toml title="{re.escape(title)}"\n(.*?)```', page, re.DOTALL)


@asynccontextmanager
async def open_client(settings: Settings) -> AsyncIterator[openai.AsyncOpenAI]:
    """Open an app with these settings. Yields a client of this app."""
    async with (
        open_app(settings, log=structlog.get_logger()) as app,
        official_client(app) as client,
    ):
        yield client


@pytest.mark.usefixtures("examples")
async def test_example_engine_tool_and_store_serve_requests(tmp_path: Path) -> None:
    settings = Settings(
        store=f"journal://{tmp_path}/responses.jsonl",
        models={"counting": Model(engine="counting", source="none")},
        web_search=WebSearchSettings(engine="off"),
        sandbox=SandboxSettings(kind="off"),
        unavailable_tools="refuse",
        tool_options={"glossary": {"lease": "The right to work on a run."}},
    )
    async with open_client(settings) as client:
        first = await client.responses.create(input="Hello")
        again = await client.responses.create(input="Hi", previous_response_id=first.id)
        assert first.output_text.endswith(" tokens")
        assert int(again.output_text.split()[0]) > int(first.output_text.split()[0])
        with_tool = await client.responses.create(input="Hello", tools=[{"type": "web_search"}])
        assert with_tool.tools[0].type == "web_search"
    lines = (tmp_path / "responses.jsonl").read_text().splitlines()
    assert len(lines) == 3 and first.id in lines[0]


async def open_counting(**model: Any) -> Any:
    """Return the backend of the model ``mine`` with the example engine."""
    configured = Model(engine="counting", source="none", **model)
    return await backend_factory("mine", configured)("mine", configured, Settings(), None)


@pytest.mark.usefixtures("examples")
async def test_settings_of_the_model_apply_to_the_example_engine() -> None:
    with pytest.raises(SetupError, match="model mine: dialect: 'other' is unknown"):
        await open_counting(dialect="other")
    with pytest.raises(SetupError, match="other"):
        await open_counting(tool_format="other")


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize("kind", ["engine", "dialect", "tool", "store", "sandbox"])
async def test_example_meets_its_contract(kind: str, tmp_path: Path) -> None:
    module = importlib.import_module("test_contracts")
    tests = {name for name in vars(module) if name.startswith("test_")}
    assert f"test_{kind}" in tests and len(tests) == 5
    test = getattr(module, f"test_{kind}")
    result = test(**dict.fromkeys(inspect.signature(test).parameters, tmp_path))
    if inspect.isawaitable(result):
        await result


@pytest.mark.usefixtures("examples")
async def test_model_of_the_page_calls_the_example_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # the settings contain a path below it
    (block,) = (text for text in blocks_on_the_page("antiphon.toml") if "replay" in text)
    file = tmp_path / "antiphon.toml"
    file.write_text(block)
    settings = load_settings(file=file, environ={})
    settings = replace(settings, store="memory:", sandbox=SandboxSettings(kind="off"))
    async with open_client(settings) as client:
        response = await client.responses.create(
            model="demo", input="What is a lease?", tools=[{"type": "web_search"}]
        )
    assert [item.type for item in response.output] == ["web_search_call", "message"]
    assert response.output_text.startswith("A lease is the right")


@pytest.mark.usefixtures("examples")
async def test_example_sandbox_is_found_by_name() -> None:
    assert await sandbox_of(Settings(sandbox=SandboxSettings(kind="length"))) is not None


@pytest.mark.usefixtures("examples")
def test_example_dialect_renders_the_prompts_of_a_model() -> None:
    engine: Any = ScriptedEngine()
    dialect = create_dialect(engine, "mine", Model(source="m", dialect="quill"), Settings())
    message = Message(role="user", content=(InputText(text="Hello"),))
    rendered = dialect.render(Conversation(items=(message,)), Options())
    assert engine.text(rendered.prompt).endswith("[user]\nHello<|end|>\n[assistant]\n")


@pytest.mark.usefixtures("examples")
def test_settings_on_the_page_name_the_examples(tmp_path: Path) -> None:
    found = {}
    for number, block in enumerate(blocks_on_the_page("antiphon.toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        found[number] = load_settings(file=file, environ={})
    engine, dialect, tool, sandbox = found.values()
    assert backend_factory("mine", engine.models["mine"]).__module__ == "counting_engine"
    assert dialect.models["quill"].dialect in plugin_names("antiphon.dialects")
    assert set(tool.tool_options) <= set(plugin_names("antiphon.tools"))
    assert sandbox.sandbox.kind in plugin_names("antiphon.sandboxes")


def test_page_shows_the_examples_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = dict(re.findall(r'```\w+ title="(examples/[^"]+)"\n(.*?)```', page, re.DOTALL))
    files = [*(ROOT / "examples" / "embedding").glob("*.py"), *EXAMPLES.glob("*.*")]
    assert {str(path.relative_to(ROOT)) for path in files} <= set(shown)
    for name, text in shown.items():
        assert text == (ROOT / name).read_text(), name
