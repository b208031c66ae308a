"""vLLM's tests of its tool parsers, with our parsers in the place of vLLM's.

The tests run in a process of their own with ``vllm_stand_ins`` as a plugin, so nothing of vLLM is
imported. A test that uses an internal of vLLM is skipped, and a test that vLLM expects to fail and
that passes here counts as passed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

_PLUGIN = "tests.format_suites.vllm_stand_ins"
_TIMEOUT = 600
#: Tests of vLLM's grammars, not of its parsers.
_LEFT_OUT = (
    "test_structural_tag_registry.py",
    "test_utils.py",
    "test_kimi_k3_named_tool_choice.py",
)


def run(folder: Path) -> tuple[Counter[str], list[str]]:
    """Run the tests. Returns the counts and the differences."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shutil.copytree(folder / "tests" / "tool_parsers", place / "tests" / "tool_parsers")
        shutil.copytree(folder / "tests" / "parser", place / "tests" / "parser")
        for path in ("conftest.py", *_LEFT_OUT):
            (place / "tests" / "tool_parsers" / path).unlink(missing_ok=True)
        report = place / "report.xml"
        command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", _PLUGIN]
        command += ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(place)]
        command += [
            str(place / "tests" / "tool_parsers"),
            f"--junitxml={report}",
            "--tb=short",
            "--continue-on-collection-errors",
        ]
        # Their package `tests` and ours have no __init__.py, so they are one package.
        path = os.pathsep.join((os.getcwd(), name))
        environment = {**os.environ, "VLLM_SOURCE": str(folder), "PYTHONPATH": path}
        subprocess.run(
            command, cwd=place, env=environment, capture_output=True, timeout=_TIMEOUT, check=False
        )
        return _read(report)


def _read(report: Path) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    differences: list[str] = []
    for case in ET.parse(report).getroot().iter("testcase"):
        faults = [each for each in case if each.tag in ("failure", "error")]
        message = (faults[0].get("message") or "") if faults else ""
        if any(each.tag == "skipped" for each in case):
            counts["other"] += 1
        elif faults and not message.startswith("[XPASS(strict)]"):
            counts["differ"] += 1
            where = (case.get("classname") or "").rpartition("test_")[2]
            differences.append(f"{where} {case.get('name')}: {' '.join(message.split())[:200]}")
        else:
            counts["agree"] += 1
    return counts, differences
