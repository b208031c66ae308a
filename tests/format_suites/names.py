"""The parser names of vLLM's and SGLang's registries: ``python -m tests.format_suites.names``.

Writes them to ``tests/dialects/registries.toml``, whose names a test resolves.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.format_suites.sources import HINTS, find_source

TARGET = Path(__file__).parents[1] / "dialects" / "registries.toml"
_VLLM = {
    "tools": ("vllm/tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
    "reasoning": ("vllm/reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
}
_SGLANG = {
    "tools": "sglang/srt/function_call/function_call_parser.py",
    "reasoning": "sglang/srt/parser/reasoning_parser.py",
}


def _registry(path: Path, variable: str) -> list[str]:
    """Return the keys of the mapping that a module assigns to a variable."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == variable:
            return sorted(ast.literal_eval(node.value))
    raise ValueError(f"{path} has no {variable}")


def _detectors(path: Path) -> list[str]:
    """Return the names in the mappings from names to detector classes."""
    source = path.read_text(encoding="utf-8")
    names = re.findall(r'"([a-z0-9_.\-]+)": *[A-Z]\w*Detector', source)
    return sorted(set(names or re.findall(r'"([a-z0-9_.\-]+)": *\(?\s*[A-Z]\w*', source)))


def _lines(title: str, kinds: Iterable[tuple[str, list[str]]]) -> Iterable[str]:
    yield f"[{title}]"
    for kind, names in kinds:
        yield f"{kind} = ["
        yield from (f'    "{name}",' for name in names)
        yield "]"
    yield ""


def main() -> int:
    """Write the file, and return the exit code."""
    vllm, sglang = find_source("vllm"), find_source("sglang")
    if vllm is None or sglang is None:
        sys.stdout.write(f"needs {HINTS['vllm']}, and {HINTS['sglang']}\n")
        return 1
    of_vllm = [(kind, _registry(vllm / path, name)) for kind, (path, name) in _VLLM.items()]
    of_sglang = [(kind, _detectors(sglang / path)) for kind, path in _SGLANG.items()]
    head = (
        "# The parser names of other servers. `python -m tests.format_suites.names` writes them.\n"
    )
    lines = [head, *_lines("vllm", of_vllm), *_lines("sglang", of_sglang)]
    TARGET.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
