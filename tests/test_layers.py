"""Imports go one way. Read from the sources, so that lazy imports count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.sources import MODULES, PACKAGE, nodes

#: Packages that any layer may import.
ROOTS = {"errors", "support", "inference", "tracing"}
#: Package or top-level module → packages and modules of ours that it may import.
ALLOWED_IMPORTS: dict[str, set[str]] = {
    "errors": set(),
    "public_api": set(),
    "support": {"errors"},
    "inference": {"wire"},
    "ipc": {"errors", "support"},
    "tracing": {"errors", "support", "wire"},
    "config": {"errors", "support", "wire"},
    "security": {"errors"},
    "oidc": {"errors", "support", "limits", "security", "wire"},
    "grammars": {"ipc", "support"},
    # the path of a request, from the wire to the model
    "wire": {"errors", "support"},
    "compat": {"errors", "wire"},
    "stream": {"errors", "wire"},
    "dialects": {*ROOTS, "grammars", "wire", "stream"},
    "upstream": {"errors", "support", "inference"},
    "engines": {*ROOTS, "dialects", "ipc", "upstream"},
    "embeddings": {*ROOTS, "engines", "ipc", "upstream"},
    "audio": {*ROOTS, "attachments", "ipc", "upstream", "wire"},
    "backends": {
        *ROOTS,
        "ipc",
        "wire",
        "stream",
        "dialects",
        "engines",
        "embeddings",
        "audio",
        "upstream",
    },
    "models": {
        *ROOTS,
        "ipc",
        "limits",
        "config",
        "wire",
        "dialects",
        "engines",
        "embeddings",
        "audio",
        "backends",
    },
    # state, tools and runs
    "store": {"errors", "support", "ipc", "security", "wire"},
    "limits": {"errors", "support", "store", "wire"},
    "blobs": {"errors", "support", "security", "store"},
    "sandbox": {"errors", "support", "security"},
    "attachments": {"errors", "ipc", "security", "sandbox", "support"},
    "retrieval": {"errors", "embeddings", "support", "store"},
    "webhooks": {"errors", "support", "security", "store"},
    "tools": {
        *ROOTS,
        "limits",
        "ipc",
        "store",
        "wire",
        "stream",
        "dialects",
        "attachments",
        "sandbox",
        "security",
        "upstream",
    },
    "resources": {
        *ROOTS,
        "limits",
        "wire",
        "stream",
        "embeddings",
        "audio",
        "backends",
        "tools",
        "store",
        "blobs",
        "attachments",
        "retrieval",
        "security",
        "webhooks",
    },
    "runs": {
        *ROOTS,
        "limits",
        "wire",
        "blobs",
        "stream",
        "backends",
        "tools",
        "resources",
        "store",
        "attachments",
        "security",
        "webhooks",
    },
    "http": {
        *ROOTS,
        "limits",
        "wire",
        "stream",
        "compat",
        "oidc",
        "resources",
        "runs",
        "security",
    },
    # the processes of a server
    "workers": {*ROOTS, "limits", "config", "http", "ipc", "models", "store", "tools", "wire"},
}
#: Composition, the public API and test doubles know the parts they put together.
COMPOSITION = {"__init__", "bootstrap", "cli", "__main__", "testing", "ray"}


def layer(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Yield the layers that a module imports, at any place in it."""
    package = ("antiphon", *path.relative_to(PACKAGE).parent.parts)
    for node in nodes(path):
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


def test_imports_go_one_way() -> None:
    faults: dict[str, set[str]] = {}
    for path in MODULES:
        own = layer(path)
        if own in COMPOSITION:
            continue
        assert own in ALLOWED_IMPORTS, f"{own} is not in the layer table: add a row"
        if forbidden := {name for name in imported(path) if name != own} - ALLOWED_IMPORTS[own]:
            faults[str(path.relative_to(PACKAGE))] = forbidden
    assert faults == {}


def test_only_the_composition_root_imports_http() -> None:
    importers = {
        str(path.relative_to(PACKAGE)) for path in MODULES if "http" in set(imported(path))
    }
    rooms = ("http/", "workers/", "bootstrap/")
    assert {name for name in importers if not name.startswith(rooms)} <= {
        "__init__.py",
        "cli/commands/server.py",
    }


def test_environment_is_read_in_one_module() -> None:
    """Except for the XDG folders in the settings' defaults, and inside boxes."""
    readers = {
        str(path.relative_to(PACKAGE))
        for path in MODULES
        for node in nodes(path)
        if getattr(node, "attr", getattr(node, "id", "")) in ("environ", "environb", "getenv")
        and ast.unparse(node) in ("os.environ", "os.getenv", "os.environb", "environ")
        and not (
            isinstance(node, ast.Name)
            and str(path.relative_to(PACKAGE)) in ("config/load.py", "config/options.py")
        )
    }
    assert readers == {"config/load.py", "config/folders.py", "sandbox/guest/agent.py"}


def test_imported_sees_every_form_of_import(tmp_path: Path) -> None:
    source = (
        "import antiphon.wire.items\nfrom antiphon import errors, __version__\n"
        "from .decode import x\ndef f():\n    from ..store import base\n    from .. import models\n"
    )
    probe = PACKAGE / "runs" / "probe.py"

    class Probe(type(probe)):  # type: ignore[misc]
        def read_text(self, *_: object, **__: object) -> str:
            return source

    assert set(imported(Probe(probe))) == {"wire", "errors", "__init__", "runs", "store", "models"}
