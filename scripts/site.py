"""Build the documentation site (``make site``): search, navigation, no request to another host.

``docs/`` is copied to ``build/site-source`` with what only the repository's pages need changed, and
zensical builds ``build/site`` from it. Its theme would load mermaid from another host, so diagrams
are left out; the tables next to them say the same.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Page at the root of the repository → its name in the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "vulnerabilities.md",
}

_LINK = re.compile(r"\[([^\]]*)\]\(((?!https?://|#)[^)\s]+)\)")
_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n", re.MULTILINE | re.DOTALL)


def stage(folder: Path) -> None:
    """Write the sources of the site to ``folder``, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    for name, page in ROOT_PAGES.items():
        shutil.copy(ROOT / name, folder / page)
    sources = {page: ROOT / name for name, page in ROOT_PAGES.items()}
    for page in folder.rglob("*.md"):
        name = str(page.relative_to(folder))
        source = sources.get(name, ROOT / "docs" / name)
        text = _DIAGRAM.sub("", page.read_text(encoding="utf-8"))
        change = partial(_link, source=source, page=page, folder=folder)
        page.write_text(_LINK.sub(change, text), encoding="utf-8")


def _link(link: re.Match[str], *, source: Path, page: Path, folder: Path) -> str:
    """Return a link of a page as the site needs it; without target there, its text only."""
    text, target = link[1], link[2]
    path, _, anchor = target.partition("#")
    found = (source.parent / path).resolve()
    root_page = ROOT_PAGES.get(str(found.relative_to(ROOT))) if found.is_relative_to(ROOT) else None
    if root_page is not None:
        there = folder / root_page
    elif found.is_relative_to(ROOT / "docs"):
        there = folder / found.relative_to(ROOT / "docs")
    else:
        return text
    up = len(page.relative_to(folder).parts) - 1
    where = "../" * up + str(there.relative_to(folder))
    return f"[{text}]({where}{'#' + anchor if anchor else ''})"


def build() -> int:
    """Stage and build the site; return the exit status."""
    stage(ROOT / "build" / "site-source")
    command = [Path(sys.executable).with_name("zensical"), "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(build())
