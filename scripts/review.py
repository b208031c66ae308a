"""Print hints for a reviewer: full folders, long modules and functions, prose that may be hard to
read.

Not part of ``make check``: it reports and always exits with 0.

    python -m scripts.review [--package antiphon/engines]
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[1]

#: Modules from which on a folder is listed: a newcomer should find a file by its name.
FOLDER_MODULES = 18

#: Sizes in lines from which on a module, a function or a docstring is listed. ``make check`` fails
#: for functions of more than 60 lines.
MODULE_LINES, FUNCTION_LINES, DOCSTRING_LINES = 400, 50, 12

#: Words that often mark a sentence whose subject or verb a reader has to guess.
POETIC = re.compile(r"\b(told|asked|heard|said|kept|begun|of which|is to be)\b", re.IGNORECASE)

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Module(Struct, frozen=True):
    """A parsed module. ``path``: relative to the working directory where possible."""

    path: Path
    source: str
    tree: ast.Module


def read_modules(package: Path) -> list[Module]:
    """Parse all modules of ``package``: a folder or one file. Unparsable modules are skipped."""
    modules = []
    for path in [package] if package.is_file() else sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        modules.append(Module(_short_path(path), source, tree))
    return modules


def _short_path(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def _line_count(node: Definition | ast.expr) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


# --- the sections of the report ------------------------------------------------------------------


def full_folders(modules: list[Module]) -> Iterator[str]:
    """Yield folders of at least ``FOLDER_MODULES`` modules, the fullest first."""
    counts = Counter(module.path.parent for module in modules)
    for folder, count in counts.most_common():
        if count >= FOLDER_MODULES:
            yield f"{folder}: {count} modules"


def long_modules(modules: list[Module]) -> Iterator[str]:
    """Yield modules of more than ``MODULE_LINES`` lines, longest first."""
    sizes = ((len(module.source.splitlines()), module.path) for module in modules)
    for size, path in sorted(sizes, reverse=True):
        if size > MODULE_LINES:
            yield f"{path}: {size} lines"


def long_functions(modules: list[Module]) -> Iterator[str]:
    """Yield functions of at least ``FUNCTION_LINES`` lines."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if (size := _line_count(node)) >= FUNCTION_LINES:
                    yield f"{module.path}:{node.lineno}: {node.name}: {size} lines"


def long_docstrings(modules: list[Module]) -> Iterator[str]:
    """Yield docstrings of more than ``DOCSTRING_LINES`` lines."""
    for module in modules:
        for docstring in _docstrings(module.tree):
            if (size := _line_count(docstring)) > DOCSTRING_LINES:
                yield f"{module.path}:{docstring.lineno}: {size} lines"


def poetic_prose(modules: list[Module]) -> Iterator[str]:
    """Yield lines of docstrings and comments with words of ``POETIC``."""
    for module in modules:
        for number, line in _prose(module):
            if words := sorted({match[0].lower() for match in POETIC.finditer(line)}):
                yield f"{module.path}:{number}: {', '.join(words)}: {line.strip()}"


def shared_class_names(modules: list[Module]) -> Iterator[str]:
    """Yield names of public top-level classes that several modules define."""
    places = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{module.path}:{node.lineno}")
    for name, where in sorted(places.items()):
        if len(where) > 1:
            yield f"{name}: {', '.join(where)}"


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body[:1]:
                case [ast.Expr(ast.Constant(str()) as docstring)]:
                    yield docstring


def _prose(module: Module) -> list[tuple[int, str]]:
    """Return the lines of docstrings and comments with their numbers, in order."""
    lines = module.source.splitlines()
    found = {
        number: lines[number - 1]
        for docstring in _docstrings(module.tree)
        for number in range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)
    }
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.COMMENT:
            found[token.start[0]] = token.string
    return sorted(found.items())


#: Title → the section's lines.
SECTIONS: Mapping[str, Callable[[list[Module]], Iterator[str]]] = {
    f"Folders of {FOLDER_MODULES} modules or more": full_folders,
    f"Modules of more than {MODULE_LINES} lines": long_modules,
    f"Functions of {FUNCTION_LINES} lines or more (limit: 60)": long_functions,
    f"Docstrings of more than {DOCSTRING_LINES} lines": long_docstrings,
    "Docstrings and comments that may be hard to read": poetic_prose,
    "Public classes that share a name": shared_class_names,
}


def report(package: Path) -> Iterator[str]:
    """Yield the report's lines for the modules of ``package``."""
    modules = read_modules(package)
    for title, section in SECTIONS.items():
        lines = list(section(modules))
        yield f"{title}: {len(lines)}"
        yield from (f"  {line}" for line in lines)
        yield ""


def main(arguments: list[str] | None = None) -> None:
    """Print the report for the package that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m scripts.review", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--package",
        type=Path,
        default=ROOT / "antiphon",
        help="folder or module to review, by default antiphon",
    )
    package = parser.parse_args(arguments).package.resolve()
    sys.stdout.writelines(f"{line}\n" for line in report(package))


if __name__ == "__main__":
    main()
