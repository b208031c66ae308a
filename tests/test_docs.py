"""The documentation: generated pages are current, links and examples are valid."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.config.load import load
from antiphon.config.options import options
from antiphon.config.settings import Settings
from antiphon.models.factories import backend_factory
from antiphon.stream.event_grammar import ITEM, PLAIN_ITEM, RESPONSE
from scripts.docs import PAGES, ROOT
from scripts.site import ROOT_PAGES

DOCS = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
#: Paths of the repository in code spans. ``NAME`` and ``…`` are placeholders.
REPOSITORY_PATH = re.compile(r"`((?:antiphon|bench|deploy|docs|examples|scripts|tests)/[\w./-]+)`")


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_current(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == PAGES[name](), "run: make docs"


def test_settings_page_lists_every_option_once() -> None:
    page = PAGES["docs/settings.md"]()
    for name, option in options(Settings).items():
        table, _, key = name.rpartition(".")
        _, _, section = page.partition(f"## `[{table}]`" if table else "## Server")
        rows = [line for line in section.splitlines() if line.startswith(f"| `{key}`")]
        assert rows, name
        assert option.help in rows[0]


def test_events_page_lists_every_grammar_edge() -> None:
    lines = PAGES["docs/events.md"]().splitlines()
    for machine in (RESPONSE, *ITEM.values(), PLAIN_ITEM):
        for (state, event), edge in machine.items():
            assert f"| {state} | `{event}` | {edge.to} | {edge.source} |" in lines


def navigation(entries: Any) -> Iterator[str]:
    """Yield the pages of the site's navigation."""
    if isinstance(entries, str):
        yield entries
    else:
        for entry in entries.values() if isinstance(entries, dict) else entries:
            yield from navigation(entry)


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    docs = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(navigation(site["nav"])) == sorted(docs | set(ROOT_PAGES.values()))


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_have_targets(path: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "``", path.read_text(encoding="utf-8"))
    links = re.findall(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_code_spans_exist(path: Path) -> None:
    named = REPOSITORY_PATH.findall(path.read_text(encoding="utf-8"))
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


SETTINGS = [
    pytest.param(block, id=f"{path.stem}-{number}")
    for path in DOCS
    for number, block in enumerate(
        re.findall(
            r"^```toml\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    )
]


@pytest.mark.parametrize("block", SETTINGS)
def test_settings_examples_load(block: str, tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(block)
    environ = dict.fromkeys(re.findall(r"\$([A-Z_]+)", block), "sk-1")
    models = load(file=file, environ=environ).settings.models
    for name, model in models.items():
        backend_factory(name, model)


def test_readme_commands_are_make_targets() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = [path.read_text(encoding="utf-8") for path in DOCS]
    named = {word for text in texts for word in re.findall(r"`make ([a-z]+)`", text)}
    named |= {word for text in texts for word in re.findall(r"^make ([a-z]+)", text, re.MULTILINE)}
    assert named
    assert named <= targets


DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_design_decisions_are_short(path: Path) -> None:
    """Each page is of a package. An entry begins in bold and has at most six lines."""
    title, *entries = path.read_text(encoding="utf-8").rstrip().split("\n\n")
    assert title == f"# Design decisions: {path.stem}"
    assert path.stem == "project" or (ROOT / "antiphon" / path.stem / "__init__.py").exists()
    long = [entry for entry in entries if len(entry.splitlines()) > 6]
    assert (long, [entry for entry in entries if not entry.startswith("**")]) == ([], [])
    assert f"(decisions/{path.name})" in (ROOT / "docs" / "decisions.md").read_text()
