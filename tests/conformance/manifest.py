"""The requirements manifest: rows of rules, each with its source, tied to tests both ways.

A row is proved by every test that carries its id in ``@pytest.mark.requirement``. A row without
such a test must say why (``deferred``). Read from the sources of the tests, so that nothing has to
be run to know what is covered.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, convert

HERE = Path(__file__).parent
TESTS = HERE.parent

__all__ = ["Group", "Row", "groups", "page", "proofs", "rows"]


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One requirement. ``deferred`` says what stands in its place until it is built, or why it
    does not apply."""

    id: str
    source: str
    rule: str
    deferred: str | None = None


class Group(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of rows."""

    title: str
    about: str
    row: tuple[Row, ...]


def groups() -> list[Group]:
    """Every file, by name."""
    paths = sorted((HERE / "requirements").glob("*.toml"))
    return [convert(tomllib.loads(path.read_text()), Group) for path in paths]


def rows() -> dict[str, Row]:
    """Every row by its id, in the order of the files."""
    found: dict[str, Row] = {}
    for row in (row for group in groups() for row in group.row):
        assert row.id not in found, f"{row.id} stands twice"
        found[row.id] = row
    return found


def proofs() -> dict[str, list[str]]:
    """Row id → the tests that claim to prove it, as ``path::name``."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        name = str(path.relative_to(TESTS.parent))
        for test, row in _marked(ast.parse(path.read_text())):
            found[row].append(f"{name}::{test}")
    return dict(found)


def _marked(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Tests and the rows they prove: by a mark of their own, or of their whole module."""
    of_all = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        is_test = node.name.startswith("test_")
        for mark in [*node.decorator_list, *(of_all if is_test else ())]:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("mark.requirement"):
                yield from ((node.name, ast.literal_eval(arg)) for arg in mark.args)


_HEAD = """\
# Conformance

The requirements that Antiphon meets, and the tests that prove them. This page is generated from
`tests/conformance/requirements` by `make docs`. Tests prove {proved} of {all} requirements; the
others state what is missing, or why they do not apply.
"""


def page() -> str:
    """``docs/conformance.md``."""
    proved = proofs()
    known = rows()
    parts = [_HEAD.format(all=len(known), proved=sum(id in proved for id in known))]
    for group in groups():
        parts.append(f"## {group.title}\n\n{group.about}\n")
        parts.append("| id | rule | source | tests |\n|---|---|---|---|")
        parts += [_line(row, proved.get(row.id, [])) for row in group.row]
        parts.append("")
    return "\n".join(parts)


def _line(row: Row, tests: list[str]) -> str:
    rule = row.rule if row.deferred is None else f"{row.rule} *Not yet: {row.deferred}.*"
    rule = rule.replace("*Not yet: not applicable: ", "*Does not apply: ")
    shown = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests)
    return f"| {row.id} | {rule} | {row.source} | {shown or '–'} |"
