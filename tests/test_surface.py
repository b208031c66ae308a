"""The surface of the package: what modules export, what things are called, how big they are."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "antiphon"
MODULES = sorted(PACKAGE.rglob("*.py"))

MODULE_LINES = 400
FUNCTION_LINES = 60
FUNCTION_LINES_P90 = 40

#: Longer than a module should be, because each is one thing that is read as a whole: the settings,
#: the items and the events of the wire.
LONG_MODULES = {"settings.py", "wire/items.py", "wire/events.py"}

#: Names that others gave: a base class, a binding that is stood in for.
OVERRIDDEN = {"data_received", "handle_async_request", "handle_completions"}
BANNED = {"manager", "handler", "helper", "util", "utils", "processor", "info", "obj", "data"}
BANNED_PREFIXES = ("do_", "handle_", "process_")


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the last, without the docstring."""
    lines = (node.end_lineno or 0) - node.lineno + 1
    if ast.get_docstring(node) is not None:
        words = node.body[0]
        lines -= (words.end_lineno or 0) - words.lineno + 1
    return lines


def defined(module: ast.Module) -> Iterator[str]:
    """What a module defines itself, at its top."""
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


each_module = pytest.mark.parametrize("path", MODULES, ids=name)


@each_module
def test_a_module_says_what_it_is(path: Path) -> None:
    words = ast.get_docstring(tree(path), clean=False)
    assert words is not None
    lines = words.strip("\n").splitlines()
    assert (
        1 <= len([line for line in lines if line.strip()]) <= (18 if path.stem == "errors" else 6)
    )


@each_module
def test_all_is_sorted_and_names_what_is_there(path: Path) -> None:
    module = tree(path)
    names = exported(module)
    if path.name == "__init__.py" and not list(defined(module)):
        return
    assert names is not None, "no __all__"
    assert names == sorted(set(names), key=_order)
    there = {*defined(module), *_imported(module)}
    assert set(names) <= there


def _order(word: str) -> tuple[int, str]:
    """Constants, then classes, then functions: as ruff sorts."""
    kind = 0 if word.isupper() and len(word) > 1 else 1 if word[0].isupper() else 2
    return kind, word


def _imported(module: ast.Module) -> set[str]:
    return {
        alias.asname or alias.name
        for node in module.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@each_module
def test_public_classes_and_functions_are_exported(path: Path) -> None:
    module = tree(path)
    public = {
        node.name
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    }
    if path.parent.name == "testing":
        return  # checks are found in their tables
    assert public <= set(exported(module) or [])


@each_module
def test_names_are_of_the_vocabulary(path: Path) -> None:
    words = {path.stem, *defined(tree(path)), *(node.name for node in functions(path))}
    words -= OVERRIDDEN
    assert not {word for word in words if _pieces(word) & BANNED}
    assert not {word for word in words if word.lstrip("_").startswith(BANNED_PREFIXES)}


def _pieces(word: str) -> set[str]:
    """The words in a name of any style."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1_\2", word)
    return {piece for piece in spaced.lower().split("_") if piece}


@each_module
def test_modules_are_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    if name(path) in LONG_MODULES:
        assert lines > MODULE_LINES, "no exception any more: take it off the list"
    else:
        assert lines <= MODULE_LINES


@each_module
def test_functions_are_short(path: Path) -> None:
    assert {
        node.name: length(node) for node in functions(path) if length(node) > FUNCTION_LINES
    } == {}


def test_most_functions_are_shorter_still() -> None:
    lengths = [length(node) for path in MODULES for node in functions(path)]
    assert statistics.quantiles(lengths, n=10)[8] <= FUNCTION_LINES_P90
