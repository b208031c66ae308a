"""The page ``docs/public-api.md``: the modules that programs and plug-ins may import."""

from __future__ import annotations

import ast
from pathlib import Path

from antiphon.public_api import PUBLIC

_ROOT = Path(__file__).parents[1]
_HEAD = """\
# Public modules

Generated from `antiphon/public_api.py` by `make docs`.

Programs that embed a server, and plug-ins, may import the names on this page. All other modules
and names are internal, even if their names have no leading underscore. The
[compatibility policy](compatibility.md) says how public names change.
"""


def public_modules() -> dict[str, tuple[str, ...]]:
    """Return each public module, with its public names."""
    found: dict[str, tuple[str, ...]] = {}
    for group in PUBLIC:
        for entry in group.modules:
            for module in _expand(entry):
                found[module] = _exports(module)
    return found


def public_api_page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for group in PUBLIC:
        parts.append(f"## {group.purpose[0].upper()}{group.purpose[1:]}\n")
        rows = ["| module | names |", "|---|---|"]
        for entry in group.modules:
            for module in _expand(entry):
                names = ", ".join(f"`{name}`" for name in _exports(module))
                rows.append(f"| `{module}` | {names} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def _expand(entry: str) -> list[str]:
    if not entry.endswith(".*"):
        return [entry]
    package = entry.removesuffix(".*")
    folder = _ROOT.joinpath(*package.split("."))
    return [f"{package}.{path.stem}" for path in sorted(folder.glob("[!_]*.py"))]


def _exports(module: str) -> tuple[str, ...]:
    """Return ``__all__`` of a module. The module is not imported, because it may need an extra."""
    path = _ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    raise ValueError(f"{module} has no __all__")
