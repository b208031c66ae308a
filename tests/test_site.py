"""The sources of the documentation site: links have targets, nothing asks another host."""

from __future__ import annotations

import re
import tomllib
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
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "``", text)
    targets = re.findall(r"\]\((?!https?://)([^)#\s]+)", text)
    return [target for target in targets if not (page.parent / target).exists()]


def test_no_page_asks_another_host(source: Path) -> None:
    for page in source.rglob("*.md"):
        assert "```mermaid" not in page.read_text(), "mermaid is loaded from another host"
        assert not re.search(
            r"!\[[^\]]*\]\(https?://|<(img|script)[^>]*https?://", page.read_text()
        )


def test_theme_loads_no_fonts() -> None:
    theme = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["theme"]
    assert theme["font"] is False
