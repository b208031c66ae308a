"""Tests show behaviour: few of them read private attributes of the package's classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

#: How many reads remain, each where nothing public shows the same: the state of a child process, of
#: a session of another library, or of a crash. It may only become smaller.
ALLOWED_READS = 14

TESTS = Path(__file__).parent
#: Documented functions of the standard library.
DOCUMENTED = {"_exit", "_current_frames"}
#: What each file with such a read contains: to parse all files takes seconds.
_PRIVATE = re.compile(r"(?<!\bself)(?<!\bcls)\._[^_]")


def private_reads(path: Path) -> Iterator[str]:
    """Yield the private attributes that a file of tests reads of objects that are not its own."""
    source = path.read_text("utf-8")
    if _PRIVATE.search(source) is None:
        return
    tree = ast.parse(source)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    own = {each.attr for each in attributes if _is_own(each)} | _defined(tree) | DOCUMENTED
    for each in attributes:
        is_private = each.attr.startswith("_") and not each.attr.startswith("__")
        if is_private and each.attr not in own:
            yield f"{path.relative_to(TESTS)}:{each.lineno} {each.attr}"


def _is_own(attribute: ast.Attribute) -> bool:
    return isinstance(attribute.value, ast.Name) and attribute.value.id in ("self", "cls")


def _defined(tree: ast.Module) -> set[str]:
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


def test_few_tests_read_private_attributes() -> None:
    reads = [each for path in sorted(TESTS.rglob("*.py")) for each in private_reads(path)]
    assert len(reads) <= ALLOWED_READS, "\n".join(reads)
