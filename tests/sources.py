"""The source code of the package, parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "antiphon"
MODULES = tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def source(path: Path) -> str:
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(source(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module."""
    return tuple(ast.walk(tree(path)))


def modules_with(*texts: str) -> Iterator[Path]:
    """Yield the modules that contain one of the texts: to parse all of them takes seconds."""
    return (path for path in MODULES if any(text in source(path) for text in texts))
