"""Imports go one way: read from the sources, so that lazy imports count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "antiphon"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: Folder or top module → what of ours it may import besides itself.
ROOTS = {"errors", "tokens", "conversation"}
MAY: dict[str, set[str]] = {
    # what everybody may know
    "errors": set(),
    "tokens": set(),
    "conversation": {"wire"},
    "__init__": set(),
    # the way of a request
    "wire": {"errors"},
    "words": set(),
    "pages": {"errors", "wire"},
    "compat": {"errors", "wire"},
    "stream": {"errors", "wire"},
    "dialects": {*ROOTS, "wire", "stream"},
    "upstream": {"errors"},
    "engines": {*ROOTS, "wire", "stream", "dialects", "upstream"},
    "embeddings": {*ROOTS, "engines", "upstream"},
    "backends": {*ROOTS, "embeddings", "wire", "stream", "dialects", "engines", "upstream"},
    "sandbox": {"errors"},
    "tools": {
        *ROOTS,
        "wire",
        "stream",
        "dialects",
        "engines",
        "embeddings",
        "backends",
        "attachments",
        "sandbox",
        "upstream",
        "address",
        "words",
        "pages",
        "seal",
    },
    "store": {"errors", "wire", "words"},
    "webhooks": {"errors", "address", "store"},
    "attachments": {"errors", "address", "sandbox"},
    "retrieval": {"errors", "embeddings", "store"},
    "runs": {
        *ROOTS,
        "seal",
        "retrieval",
        "wire",
        "stream",
        "embeddings",
        "backends",
        "tools",
        "store",
        "attachments",
        "words",
        "pages",
    },
    "http": {*ROOTS, "wire", "stream", "compat", "runs", "pages", "__init__"},
    # around it
    "address": {"errors"},
    "logs": {"errors"},
    "options": {"errors"},
    "seal": {"errors"},
    "settings": {"errors", "options"},
    "configuration": {"errors", "options", "settings"},
    "formats": {"errors", "options", "dialects"},
    "hub": {"errors"},
    "pull": {"errors", "hub", "engines"},
    "chat": {"errors"},
    "sources": {"errors", "pull"},
    "embedders": {*ROOTS, "backends", "embeddings", "pull", "settings", "sources"},
    "toolbox": {"errors", "address", "seal", "settings", "attachments", "sandbox", "tools"},
    "factories": {
        *ROOTS,
        "embedders",
        "sources",
        "backends",
        "dialects",
        "embeddings",
        "engines",
        "formats",
        "options",
        "pull",
        "settings",
        "configuration",
        "upstream",
    },
    "catalog": {*ROOTS, "backends", "embedders", "embeddings", "factories", "pull", "settings"},
}
#: Composition and test doubles know the parts they put together.
COMPOSE = {"server", "cli", "__main__", "testing"}


def layer(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """The layers of ours that a module imports, wherever in it."""
    package = ("antiphon", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*base, *((node.module or "").split(".") if node.module else [])])
            # "from antiphon import errors" names a module, "from antiphon import __version__" not
            names = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "antiphon":
                known = len(parts) > 1 and (
                    (PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").is_file()
                )
                yield parts[1] if known else "__init__"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    own = layer(path)
    if own in COMPOSE:
        return
    assert own in MAY, f"{own} has no place in the layers yet: give it one"
    assert {name for name in imported(path) if name != own} <= MAY[own]


def test_nobody_imports_http_but_who_puts_the_server_together() -> None:
    importers = {
        str(path.relative_to(PACKAGE)) for path in MODULES if "http" in set(imported(path))
    }
    assert {name for name in importers if not name.startswith("http/")} <= {"server.py", "cli.py"}


def test_the_environment_is_read_in_one_module() -> None:
    """But for where the system keeps what is this user's, of which defaults are made."""
    readers = {
        str(path.relative_to(PACKAGE))
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
        and ast.unparse(node) in ("os.environ", "os.getenv", "os.environb", "environ")
        and not (isinstance(node, ast.Name) and path.name in ("configuration.py", "options.py"))
    }
    assert readers == {"configuration.py", "settings.py"}


def test_the_reader_of_imports_sees_every_way_to_write_them(tmp_path: Path) -> None:
    source = (
        "import antiphon.wire.items\nfrom antiphon import errors, __version__\n"
        "from .decode import x\ndef f():\n    from ..store import base\n    from .. import pull\n"
    )
    probe = PACKAGE / "runs" / "probe.py"

    class Probe(type(probe)):  # type: ignore[misc]
        def read_text(self, *_: object, **__: object) -> str:
            return source

    assert set(imported(Probe(probe))) == {"wire", "errors", "__init__", "runs", "store", "pull"}
