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

__all__ = ["Row", "page", "proofs", "rows"]


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One requirement. ``deferred`` says what stands in its place until it is built."""

    id: str
    source: str
    rule: str
    deferred: str | None = None


def rows() -> dict[str, Row]:
    """Every row by its id, in the order of the files."""
    found: dict[str, Row] = {}
    for path in sorted((HERE / "requirements").glob("*.toml")):
        for raw in tomllib.loads(path.read_text())["row"]:
            row = convert(raw, Row)
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
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("mark.requirement"):
                yield from ((node.name, ast.literal_eval(arg)) for arg in mark.args)


def page() -> str:
    """``docs/conformance.md``."""
    proved = proofs()
    lines = [
        "# Conformance",
        "",
        "What Antiphon is held to, and the tests that hold it. Generated from",
        "`tests/conformance/requirements`; `make docs` writes it, `make check` compares it.",
        "",
        "| id | rule | source | tests |",
        "|---|---|---|---|",
    ]
    for row in rows().values():
        tests = ", ".join(f"`{test}`" for test in proved.get(row.id, ()))
        rule = row.rule if row.deferred is None else f"{row.rule} *Not yet: {row.deferred}*"
        lines.append(f"| {row.id} | {rule} | {row.source} | {tests or '–'} |")
    return "\n".join(lines) + "\n"
