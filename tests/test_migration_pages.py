"""Pages for those who come from other servers: what they say of this server exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli.foreign_flags import FOREIGN_FLAGS
from antiphon.config.model import Model
from antiphon.config.options import options, setting_tables
from antiphon.config.settings import Settings
from scripts.docs import ROOT

PAGES = sorted((ROOT / "docs").glob("from-*.md"))
#: Names in the columns of this server that are not settings.
REQUEST_FIELDS = {
    *("cached_tokens", "input_transformations", "instructions", "max_output_tokens"),
    *("return_metrics", "return_tokens_as_token_ids"),
}


def tables(path: Path, first: str) -> list[list[str]]:
    """Return the rows of the tables in the sections whose heading starts with ``first``."""
    rows = []
    for section in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
        if section.startswith(first):
            lines = [line for line in section.splitlines() if line.startswith("|")]
            rows += [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return rows


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_flags_have_the_replacement_that_the_command_line_names(path: Path) -> None:
    known = {*FOREIGN_FLAGS, "--port"}
    named = {word for row in tables(path, "Flags") for word in code(row[0])}
    assert {word.replace("_", "-") for word in named if word.startswith("--")} <= known


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_settings_exist(path: Path) -> None:
    known = {*options(Settings), *setting_tables(Settings), *options(Model), *REQUEST_FIELDS}
    rows = [*tables(path, "Flags"), *tables(path, "Commands")]
    named = {word for row in rows for word in code(row[1])}
    assert {word for word in named if re.fullmatch(r"[a-z]+(_[a-z]+)+", word)} <= known


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_endpoints_exist(path: Path, make_document: Any) -> None:
    paths = make_document["paths"]
    for row in tables(path, "Endpoints"):
        same = row[1].startswith("the same")
        for word in code(row[0] if same else row[1]):
            if match := re.match(r"(?:[A-Z]+ )?(/[a-z0-9_/]+)", word):
                assert any(each.startswith(match[1]) for each in paths), word


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_endpoints_that_are_not_available_do_not_exist(path: Path, make_document: Any) -> None:
    for row in tables(path, "Endpoints"):
        if row[1].startswith("not available"):
            assert not {word.split()[-1] for word in code(row[0])} & make_document["paths"]


@pytest.fixture(scope="module")
def make_document() -> Any:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    return {"paths": set(re.findall(r"^### [A-Z]+ (/\S+)", text, re.MULTILINE))}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_metrics_exist(path: Path) -> None:
    known = re.findall(r"^\| `(\w+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    for row in tables(path, "Metrics"):
        for name in code(row[1]):
            assert name in known or f"{name}_total" in known
