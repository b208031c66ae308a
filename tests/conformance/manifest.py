"""The requirements manifest: rows of rules with their sources, tied to tests in both directions.

A row is proved by every test that has its id in ``@pytest.mark.requirement``. A row without such
a test must state a reason (``deferred``). The marks are read from the tests' source code, so no
test has to run.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct, convert

HERE = Path(__file__).parent
TESTS = HERE.parent


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One requirement. ``deferred`` says what exists in its place, or why it does not apply."""

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
    """Return every group, ordered by file name."""
    paths = sorted((HERE / "requirements").glob("*.toml"))
    return [convert(tomllib.loads(path.read_text()), Group) for path in paths]


def rows() -> dict[str, Row]:
    """Return every row by id, in file order."""
    result: dict[str, Row] = {}
    for row in (row for group in groups() for row in group.row):
        assert row.id not in result, f"{row.id} stands twice"
        result[row.id] = row
    return result


@cache
def proofs() -> Mapping[str, list[str]]:
    """Return the tests that prove each row, as ``path::name``."""
    result: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        name = str(path.relative_to(TESTS.parent))
        source = path.read_text()
        if "mark.requirement" in source:
            for test, row in _marks(ast.parse(source)):
                result[row].append(f"{name}::{test}")
    return dict(result)


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each test with each row it proves, by its own mark or its module's."""
    module_marks = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        is_test = node.name.startswith("test_")
        for mark in [*node.decorator_list, *(module_marks if is_test else ())]:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("mark.requirement"):
                yield from ((node.name, ast.literal_eval(arg)) for arg in mark.args)


_HEAD = """\
# Conformance

The requirements that Antiphon meets, and the tests that prove them. This page is generated from
`tests/conformance/requirements` by `make docs`. Tests prove {proved} of {all} requirements; the
others state what is missing, or why they do not apply.
"""


def page() -> str:
    """Return the text of ``docs/conformance.md``."""
    proved = proofs()
    all_rows = rows()
    parts = [_HEAD.format(all=len(all_rows), proved=sum(id in proved for id in all_rows))]
    for group in groups():
        parts.append(f"## {group.title}\n\n{group.about}\n")
        parts.append("| id | rule | source | tests |\n|---|---|---|---|")
        parts += [_line(row, proved.get(row.id, [])) for row in group.row]
        parts.append("")
    return "\n".join(parts)


def _line(row: Row, tests: list[str]) -> str:
    rule = row.rule if row.deferred is None else f"{row.rule} *Not yet: {row.deferred}.*"
    rule = rule.replace("*Not yet: not applicable: ", "*Does not apply: ")
    test_list = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests)
    return f"| {row.id} | {rule} | {row.source} | {test_list or '–'} |"
