"""The surface of the package: docstrings, exports of public modules, short functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from scripts.public_api_page import public_modules
from tests.sources import MODULES, PACKAGE, nodes, tree

FUNCTION_LINES = 60


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines, without the docstring."""
    lines = (node.end_lineno or 0) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        words = node.body[0]
        lines -= (words.end_lineno or 0) - words.lineno + 1
    return lines


def defined(module: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines at its top level."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from (leaf.id for leaf in ast.walk(target) if isinstance(leaf, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def exported(module: ast.Module) -> list[str] | None:
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return list(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    return None


def test_every_module_has_a_docstring() -> None:
    assert [name(path) for path in MODULES if not ast.get_docstring(tree(path))] == []


def test_internal_modules_have_all_only_to_pass_names_on() -> None:
    """What an internal module offers are its names without an underscore. It lists them only if it
    also offers names of a package that its users must not import."""
    public = public_modules()
    repeating = {
        name(path)
        for path in MODULES
        if (names := exported(tree(path))) is not None
        and _module(path) not in public
        and not set(names) & _imported(tree(path))
    }
    assert repeating == set()


def test_all_is_sorted_and_its_names_exist() -> None:
    faults = {name(path): fault for path in MODULES if (fault := _export_fault(path))}
    assert faults == {}


def _module(path: Path) -> str:
    return ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


def _export_fault(path: Path) -> str | None:
    """Return what is wrong with the ``__all__`` of a module, or None."""
    module = tree(path)
    names = exported(module)
    if names is None:
        return None
    if names != sorted(set(names), key=_order):
        return "not sorted"
    unknown = set(names) - {*defined(module), *_imported(module)}
    return f"unknown names: {sorted(unknown)}" if unknown else None


def _order(word: str) -> tuple[int, str]:
    """Sort constants, then classes, then functions, as ruff does."""
    kind = 0 if word.isupper() and len(word) > 1 else 1 if word[0].isupper() else 2
    return kind, word


def _imported(module: ast.Module) -> set[str]:
    """Names imported at the top of a module, under ``if TYPE_CHECKING`` as well."""
    blocks = [module.body, *(node.body for node in module.body if isinstance(node, ast.If))]
    return {
        alias.asname or alias.name
        for block in blocks
        for node in block
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_public_classes_and_functions_of_public_modules_are_exported() -> None:
    missing = {
        name(path): hidden
        for path in MODULES
        if (names := exported(tree(path))) is not None
        and path.parent.name != "testing"  # checks are in their tables
        and (hidden := _public(path) - set(names))
    }
    assert missing == {}


def _public(path: Path) -> set[str]:
    return {
        node.name
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    }


def test_functions_are_short() -> None:
    long = {
        f"{name(path)}::{node.name}": length(node)
        for path in MODULES
        for node in functions(path)
        if length(node) > FUNCTION_LINES
    }
    assert long == {}


def test_a_public_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name(path))
    assert {word: paths for word, paths in places.items() if len(paths) > 1} == {}
