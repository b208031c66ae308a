"""Continuous integration runs a failed test once more, and names the tests that passed then."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.retry_tests import main

#: Each test fails as often as its name says, and leaves a file for each of its runs.
TESTS = """
import pathlib, pytest

@pytest.mark.parametrize("failures", [0, 1, 2])
def test_case(failures):
    run = len(list(pathlib.Path(__file__).parent.glob(f"run-{failures}-*")))
    (pathlib.Path(__file__).parent / f"run-{failures}-{run}").touch()
    assert run >= failures
"""


@pytest.fixture(autouse=True)
def without_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their imports take most of the time of a short run."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit status and the names of the flaky tests."""
    (folder / "test_cases.py").write_text(TESTS)
    (folder / "pytest.ini").touch()
    flaky = folder / "flaky.txt"
    flaky.touch()
    pytest_command = (sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "-n", "1")
    return main(flaky, [*pytest_command, str(folder), *arguments]), flaky.read_text()


def runs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("run-*"))


def test_test_that_passes_the_second_time_is_flaky(tmp_path: Path) -> None:
    status, flaky = run(tmp_path, "-k", "0 or 1")
    assert (status, flaky) == (0, "flaky: test_cases.py::test_case[1]\n")
    assert runs(tmp_path) == ["run-0-0", "run-1-0", "run-1-1"], "what passed does not run again"


def test_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    status, flaky = run(tmp_path)
    assert (status, flaky) == (1, "flaky: test_cases.py::test_case[1]\n")


@pytest.mark.parametrize(("argument", "status"), [("-k=none", 5), ("--unknown", 4)])
def test_run_without_tests_is_not_repeated(tmp_path: Path, argument: str, status: int) -> None:
    assert run(tmp_path, argument) == (status, "")


def test_test_that_is_not_found_again_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_collection_modifyitems(config, items):\n"
        "    if config.getoption('lf'):\n"
        "        items.clear()\n"
    )
    assert run(tmp_path, "-k", "1") == (5, "")
