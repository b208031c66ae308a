"""The sources of the documentation site: links have targets, nothing asks another host."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from scripts.site import ROOT, stage


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "source"
    stage(folder)
    return folder


def test_links_have_targets(source: Path) -> None:
    broken = [(page.name, target) for page in source.rglob("*.md") for target in _missing(page)]
    assert broken == []


def _missing(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "``", _prose(page))
    targets = re.findall(r"\]\((?!https?://)([^)\s]+)", text)
    return [target for target in targets if not _exists(page, target)]


def _exists(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    found = page.parent / path if path else page
    return found.exists() and (not anchor or anchor in _anchors(found))


@cache
def _anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page: its headings, as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.*?)#*$", _prose(page), re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings]
    counts = Counter[str]()
    anchors = []
    for name in (name.replace(" ", "-") for name in names):
        anchors.append(f"{name}_{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return frozenset(anchors)


@cache
def _prose(page: Path) -> str:
    """Return the text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_no_page_asks_another_host(source: Path) -> None:
    for page in source.rglob("*.md"):
        assert "```mermaid" not in page.read_text(), "mermaid is loaded from another host"
        assert not re.search(
            r"!\[[^\]]*\]\(https?://|<(img|script)[^>]*https?://", page.read_text()
        )


def test_theme_loads_no_fonts() -> None:
    theme = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["theme"]
    assert theme["font"] is False
