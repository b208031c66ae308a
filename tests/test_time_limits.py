"""A test that waits has a limit that a busy machine does not reach."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

#: A process may wait this many seconds for a processor.
MIN_SECONDS = 20
TESTS = Path(__file__).parent


def short_limits(path: Path) -> Iterator[str]:
    """Yield the limits of a file that are short, unless the test expects that they are reached."""
    tree = ast.parse(path.read_text("utf-8"))
    expected = {id(each) for block in _expecting_timeouts(tree) for each in ast.walk(block)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in expected:
            seconds = _limit(node)
            if seconds is not None and 0 < seconds < MIN_SECONDS:
                yield f"{path.relative_to(TESTS)}:{node.lineno}: {seconds} s"


def _expecting_timeouts(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            heads = [ast.unparse(each.context_expr) for each in node.items]
            if any("TimeoutError" in head for head in heads):
                yield node
        elif isinstance(node, ast.Try):
            yield node


def _limit(call: ast.Call) -> float | None:
    """Return the literal limit of ``asyncio.timeout(…)`` and ``asyncio.wait_for(…, …)``."""
    name = ast.unparse(call.func)
    at = {"asyncio.timeout": 0, "asyncio.wait_for": 1}.get(name)
    values = [*call.args, *(each.value for each in call.keywords if each.arg == "timeout")]
    if at is None or len(values) <= at or not isinstance(values[at], ast.Constant):
        return None
    value = values[at].value  # type: ignore[attr-defined]
    return float(value) if isinstance(value, int | float) else None


def test_limits_of_waits_are_long() -> None:
    found = [each for path in sorted(TESTS.rglob("*.py")) for each in short_limits(path)]
    assert found == []
