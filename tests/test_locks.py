"""The lock files fit pyproject.toml, and name packages by their hashes alone."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
#: What the container image installs. `make lock` names the same extras.
IMAGE_EXTRAS = {"local", "postgres"}
#: Lock file → extras, and packages with which pip builds Antiphon itself.
LOCKS = {
    "requirements-dev.lock": ({"dev"}, {"hatchling", "editables"}),
    "deploy/requirements.lock": (IMAGE_EXTRAS, {"hatchling"}),
}


def requirements(extras: set[str]) -> Iterator[Requirement]:
    """Yield what Antiphon requires with these extras, and with the extras that they name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    for requirement in map(Requirement, lines):
        if requirement.name == "antiphon":
            yield from requirements(requirement.extras)
        else:
            yield requirement


@pytest.mark.parametrize("name", LOCKS)
def test_lock_file_fits_the_requirements(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    versions: dict[str, list[str]] = {}
    for line in lines:
        match = re.fullmatch(r"([\w.-]+)==(\S+)( ; [^-]+)?(\s+--hash=sha256:[0-9a-f]{64})+", line)
        assert match is not None, line
        versions.setdefault(canonicalize_name(match[1]), []).append(match[2])
    extras, build = LOCKS[name]
    for requirement in (*map(Requirement, build), *requirements(extras)):
        found = versions.get(canonicalize_name(requirement.name), [])
        assert any(map(requirement.specifier.contains, found)), f"run make lock: {requirement}"
        if requirement.marker is None:
            assert all(map(requirement.specifier.contains, found)), requirement
