"""Texts that almost match a regular expression, and a check that work on them grows linearly.

Backtracking is slow on repeated near-misses: a prefix of the pattern, or one character of its
classes, many times. ``near_misses`` derives them from the syntax tree of a pattern.
"""

from __future__ import annotations

import ast
import gc
import importlib
import itertools
import pkgutil
import re
import re._constants as ops
import re._parser as parser
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import antiphon

PACKAGE = Path(antiphon.__file__).parent
_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split")
#: The sizes of exponential growth, then those of quadratic growth: at the end it takes seconds.
_SIZES = (16, 24, 28, 256, 1024, 4096, 16_384)
_MAX_SIZE = 1 << 20
#: CPU seconds below which nothing is a fault, above which a larger size is tried, and above which
#: no second measurement is needed.
_FAULT_S, _SUSPECT_S, _CLEAR_S = 0.2, 0.004, 2.0
#: A text of this many characters is no further measured if it takes less CPU seconds than that, or
#: less than the third number and half of what linear growth allows: of quadratic work that matters,
#: it takes ten times as long.
_PROBE_SIZE, _PROBE_S, _PROBE_LINEAR_S = 4096, 0.0003, 0.001
#: How much more than linear the work may grow from one size to the next.
_TOLERANCE = 3.0
_FILLERS = "a 1.-:/\"'<\n[{_é"


class NearMiss(NamedTuple):
    """``start``, then ``unit`` many times, then ``end``."""

    start: str
    unit: str
    end: str = ""

    def text(self, size: int) -> str:
        return self.start + self.unit * max(1, size // len(self.unit)) + self.end


class Pattern(NamedTuple):
    """A pattern of the package. ``methods``: those called on it; ``name``: for messages."""

    name: str
    compiled: re.Pattern[Any]
    methods: frozenset[str]


# --- work ----------------------------------------------------------------------------------------


def growth_fault(work: Callable[[str], object], near: NearMiss) -> str | None:
    """Return what is wrong if the CPU time of ``work`` grows faster than the text, else None.

    ``re`` counts no steps, so CPU time has to do. It is no statement about speed: only growth by
    more than three times the linear expectation *and* more than 0.2 s of this thread's CPU time is
    a fault, measured twice if it took less than two seconds. Linear work of this package takes
    milliseconds for such texts; a quadratic pattern grows by sixteen at each of the last sizes and
    takes seconds.
    """
    before, size_before = 0.0, 1
    for size in (*_SIZES, *_larger_sizes()):
        text = near.text(size)
        spent = _cpu_seconds(work, text)
        allowed = _TOLERANCE * max(before, 1e-4) * size / size_before
        if spent > max(_FAULT_S, allowed) and (
            spent > _CLEAR_S or _cpu_seconds(work, text) > allowed
        ):
            return f"{near!r}: {size} characters take {spent:.2f} s, {size_before} {before:.4f} s"
        if spent > _FAULT_S or (size >= _SIZES[-1] and spent < max(_SUSPECT_S, allowed / 2)):
            return None
        if size == _PROBE_SIZE and spent < max(_PROBE_S, min(_PROBE_LINEAR_S, allowed / 2)):
            return None
        before, size_before = spent, size
    return None


def _larger_sizes() -> Iterator[int]:
    size = _SIZES[-1]
    while size < _MAX_SIZE:
        size *= 4
        yield size


def _cpu_seconds(work: Callable[[str], object], text: str) -> float:
    """Return the CPU time of one call, without garbage collection.

    A full collection visits every object of the process, so its time depends on the tests before.
    """
    gc.disable()
    try:
        start = time.thread_time()
        work(text)
        return time.thread_time() - start
    finally:
        gc.enable()


# --- near-misses of a pattern --------------------------------------------------------------------


def near_misses(pattern: re.Pattern[Any], *, thorough: bool) -> list[NearMiss]:
    """Return near-misses of a pattern; those of bytes are Latin-1.

    ``thorough``: repeat more characters, after more beginnings.
    """
    tree = parser.parse(pattern.pattern, pattern.flags)
    chars = list(dict.fromkeys(_chars(tree)))[:16]
    whole, prefixes = _samples(tree)
    starts = sorted({text for text in (*whole, *prefixes) if text}, key=len)[:24]
    count = 16 if thorough else 5
    found = [NearMiss("", char) for char in chars]
    found += [
        NearMiss("", one + other)
        for one, other in itertools.permutations(chars[: min(8, count)], 2)
    ]
    found += [NearMiss("", start) for start in starts]
    for start in starts if thorough else starts[:: max(1, len(starts) // count)]:
        found += [NearMiss(start, char) for char in chars[:count]]
        found += [NearMiss(start, char, "\0") for char in chars[:count]]
    for char in chars:
        found += (NearMiss("", char, "\0"), NearMiss("x", char, "\0"), NearMiss("", char + "\n"))
    return list(dict.fromkeys(found))


def _chars(tree: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    """Yield characters that the parts of a pattern match, and those that they exclude."""
    for op, argument in tree:
        yield from _chars_of(op, argument)
        if op in (ops.NOT_LITERAL, ops.LITERAL):
            yield chr(argument)
        for inner in _inner(op, argument):
            yield from _chars(inner)


def _chars_of(op: Any, argument: Any) -> list[str]:
    """Return a few characters that a part of one character matches."""
    if op is ops.LITERAL:
        return [chr(argument)]
    if op is ops.NOT_LITERAL:
        return ["a" if chr(argument) != "a" else "b"]
    if op is ops.ANY:
        return ["a"]
    if op is not ops.IN:
        return []
    matched = [char for char in _FILLERS if _is_member(char, argument)]
    listed = [chr(value) for kind, value in argument if kind is ops.LITERAL]
    ranged = [chr(value[0]) for kind, value in argument if kind is ops.RANGE]
    if argument[0][0] is ops.NEGATE:
        return matched[:4] or ["\u4e00"]
    return [*matched[:3], *listed[:3], *ranged[:2]]


def _is_member(char: str, members: Any) -> bool:
    is_negated = members[0][0] is ops.NEGATE
    return is_negated != any(_matches(char, kind, value) for kind, value in members)


def _matches(char: str, kind: Any, value: Any) -> bool:
    if kind is ops.LITERAL:
        return ord(char) == value
    if kind is ops.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if kind is not ops.CATEGORY:
        return False
    name = str(value).removeprefix("CATEGORY_")
    letter = {"SPACE": r"\s", "WORD": r"\w", "DIGIT": r"\d"}[name.removeprefix("NOT_")]
    return (re.match(letter, char) is None) == name.startswith("NOT_")


def _inner(op: Any, argument: Any) -> list[Any]:
    """Return the patterns inside a part."""
    if op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
        return [argument[2]]
    if op is ops.SUBPATTERN:
        return [argument[3]]
    if op is ops.BRANCH:
        return list(argument[1])
    if op in (ops.ASSERT, ops.ASSERT_NOT):
        return [argument[1]]
    return [argument] if op is ops.ATOMIC_GROUP else []


def _samples(tree: Iterable[tuple[Any, Any]]) -> tuple[list[str], set[str]]:
    """Return a few texts that match, and the beginnings of such texts."""
    texts = [""]
    prefixes: set[str] = set()
    for op, argument in tree:
        options = _chars_of(op, argument)[:3]
        for inner in _inner(op, argument):
            if op in (ops.ASSERT, ops.ASSERT_NOT):
                continue
            matched, begun = _samples(inner)
            prefixes |= {texts[0] + each for each in begun}
            options += matched[:3]
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
            least = argument[0]
            options = [each * min(max(least, 1), 70) for each in options]
            options += [""] if least == 0 else []
        texts = list(
            dict.fromkeys(text + each for text in texts[:4] for each in (options or [""])[:4])
        )[:8]
        prefixes |= set(texts[:4])
    return texts, prefixes


# --- the patterns of the package -----------------------------------------------------------------


@cache
def patterns(package: str) -> tuple[Pattern, ...]:
    """Return the patterns of a part of the package: the name of a package or module in it.

    They are attributes of modules and classes, and in calls of ``re`` inside functions.
    """
    found: list[Pattern] = []
    for module in _modules(package):
        source = Path(str(module.__file__)).read_text()
        attributes = list(_attributes(module))
        if not attributes and "import re" not in source:
            continue
        tree = ast.parse(source)
        uses = _uses(tree)
        for name, pattern in attributes:
            where = f"{module.__name__}.{name}"
            found.append(Pattern(where, pattern, uses.get(name, frozenset(_METHODS))))
        found += _literal_patterns(tree, module.__name__)
    return tuple({(each.name, each.compiled): each for each in found}.values())


def _attributes(module: Any) -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Yield the attributes of a module and of its classes that are or contain patterns."""
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    for space in (module, *(each for each in classes if each.__module__ == module.__name__)):
        for name, value in vars(space).items():
            for pattern in _patterns_in(value):
                yield name, pattern


def parts() -> list[str]:
    """Return the names of the packages and modules directly in the package."""
    return [info.name for info in pkgutil.iter_modules([str(PACKAGE)]) if info.name != "__main__"]


def _modules(part: str) -> Iterator[Any]:
    root = importlib.import_module(f"antiphon.{part}")
    yield root
    for info in pkgutil.walk_packages(getattr(root, "__path__", ()), f"{root.__name__}."):
        if info.name.endswith(".__main__"):
            continue
        try:
            yield importlib.import_module(info.name)
        except ImportError:
            continue  # needs an extra that is not installed


def _patterns_in(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(owner := getattr(value, "__self__", None), re.Pattern):
        yield owner
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _patterns_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _patterns_in(each)


def _uses(tree: ast.Module) -> dict[str, frozenset[str]]:
    """Return the methods that a module calls on each name; all, if the name is used otherwise."""
    called: dict[str, set[str]] = {}
    counted: dict[str, int] = {}
    total: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _METHODS:
            value = node.value
            for each in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
                called.setdefault(_name(each), set()).add(node.attr)
                counted[_name(each)] = counted.get(_name(each), 0) + 1
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            total[_name(node)] = total.get(_name(node), 0) + 1
    return {
        name: frozenset(methods)
        for name, methods in called.items()
        if counted[name] == total.get(name)
    }


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _calls_in_functions(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls of functions of ``re`` with a pattern, inside functions."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [each for each in ast.walk(tree) if isinstance(each, kinds)]
    nodes = dict.fromkeys(node for function in functions for node in ast.walk(function))
    for node in nodes:
        if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
            owner, method = node.func.value, node.func.attr
            is_re = isinstance(owner, ast.Name) and owner.id == "re"
            if is_re and method in (*_METHODS, "compile"):
                yield node


def _literal_patterns(tree: ast.Module, module: str) -> Iterator[Pattern]:
    for call in _calls_in_functions(tree):
        if isinstance(call.args[0], ast.Constant):
            assert isinstance(call.func, ast.Attribute)
            method = call.func.attr
            methods = frozenset(_METHODS if method == "compile" else {method})
            yield Pattern(f"{module}:{call.lineno}", re.compile(call.args[0].value), methods)


#: A call in a function. Most modules have none, and need not be parsed.
_INDENTED_CALL = re.compile(rf"^[ \t].*\bre\.(?:compile|{'|'.join(_METHODS)})\(", re.MULTILINE)


def dynamic_patterns() -> set[str]:
    """Return the modules whose functions build patterns from other texts."""
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    return {
        str(path.relative_to(PACKAGE))
        for path, source in sources.items()
        if _INDENTED_CALL.search(source)
        for call in _calls_in_functions(ast.parse(source))
        if not isinstance(call.args[0], ast.Constant)
    }
