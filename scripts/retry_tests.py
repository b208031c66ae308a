"""Run pytest. Run the tests that fail once more, one after the other, and name the flaky ones.

Usage: ``python -m scripts.retry_tests FLAKY PYTEST ARGUMENT…`` The tests that failed first and
passed then are appended to the file ``FLAKY``, one ``flaky: NAME`` a line. Continuous integration
prints this file in its last lines. The exit status is 0 if each test has passed once, else that of
the run that decided.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

#: Pytest's exit status if tests failed. Every other failure (2: interrupted, 3: internal error,
#: 4: usage, 5: no tests) concerns the run and not a test, and is final.
_TESTS_FAILED = 1


def main(flaky: Path, command: list[str]) -> int:
    """Run the tests, and return the exit status. ``command``: pytest with its arguments."""
    with tempfile.TemporaryDirectory() as cache:
        command = [*command, "-o", f"cache_dir={cache}"]
        status = subprocess.run(command).returncode
        if status != _TESTS_FAILED:
            return status
        failed = _failed_tests(Path(cache))
        # Without xdist: the tests have the machine for themselves. If pytest finds none of them
        # again, it ends with 5, which is a failure.
        alone = ["-n", "0", "--last-failed", "--last-failed-no-failures", "none"]
        status = subprocess.run([*command, *alone]).returncode
        if status in (0, _TESTS_FAILED):
            names = failed - _failed_tests(Path(cache))
            with flaky.open("a") as report:
                report.writelines(f"flaky: {name}\n" for name in sorted(names))
        return status


def _failed_tests(cache: Path) -> set[str]:
    """Return the ids of the tests that failed when they last ran."""
    path = cache / "v" / "cache" / "lastfailed"
    return set(json.loads(path.read_text())) if path.exists() else set()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
