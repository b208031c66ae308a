"""The schema validator: every keyword, limits of time and memory, no fetching, and failures of its
process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.backends.validation import schema_validator
from antiphon.backends.validation.schema_validator import SchemaValidator, match_fault_in_process
from antiphon.backends.validation.validator_worker import validate_json
from antiphon.errors import BackendError, InvalidRequest
from antiphon.support.fair_limiter import FairLimiter
from antiphon.testing.memory_store.store import MemoryStore
from tests.conformance.server import Server, engine, local

DRAFT_4 = "http://json-schema.org/draft-04/schema#"


@pytest.mark.parametrize(
    ("schema", "valid", "invalid", "message"),
    [
        ({"uniqueItems": True}, "[1, 2]", "[1, 1]", "non-unique"),
        ({"properties": {"a": {"not": {"type": "string"}}}}, "{}", '{"a": "x"}', "at a: "),
        ({"oneOf": [{"type": "number"}, {"minimum": 3}]}, "2", "4", "more than one"),
        ({"if": {"type": "string"}, "then": {"maxLength": 1}}, '"a"', '"ab"', "longer"),
        ({"$schema": DRAFT_4, "dependencies": {"a": ["b"]}}, "{}", '{"a": 1}', '"b"'),
        ({"$schema": "https://nobody/knows", "uniqueItems": True}, "[]", "[1, 1]", "non-unique"),
        ({"items": {"properties": {"x": {"contains": {}}}}}, "[]", '[{"x": []}]', "at [0].x: "),
        ({"pattern": "^(?!a)"}, '"b"', '"a"', "match"),
        ({"format": "uri-reference"}, '"/a"', '"a b"', "uri-reference"),
        ({"uniqueItems": True}, "[]", "[NaN", "not JSON"),
        ({"items": {"$ref": "#"}}, "[" * 400 + "]" * 400, "[" * 700 + "]" * 700, "deep"),
    ],
)
def test_fault_names_the_violated_keyword(
    schema: Any, valid: str, invalid: str, message: str
) -> None:
    assert validate_json(schema, valid) == {}
    assert message in validate_json(schema, invalid)["fault"]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "file:///etc/passwd"},
        {"$ref": "http://127.0.0.1:1/x"},
        {"$ref": "#/nowhere"},
        {"type": "nothing"},
        {"pattern": "("},
    ],
)
def test_invalid_schema_is_reported(schema: Any) -> None:
    assert validate_json(schema, None)["schema"]


async def test_validates_in_a_separate_process() -> None:
    validator = SchemaValidator({"uniqueItems": True}, "p", FairLimiter(1))
    await validator.check()
    assert await validator.fault("[1, 2]") is None
    assert await validator.fault("[1, 1]") == "[1,1] has non-unique elements"
    with pytest.raises(InvalidRequest) as raised:
        await SchemaValidator({"not": {"$ref": "#/x"}}, "p", FairLimiter(1)).check()
    assert (raised.value.param, raised.value.code) == ("p", "invalid_json_schema")


async def test_slow_validation_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_validator, "_SECONDS", 0.5)
    doubling = {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]}
        for n in range(60)
    }
    schema = {"$defs": {**doubling, "a60": {"type": "string"}}, "not": {"$ref": "#/$defs/a0"}}
    assert (
        await SchemaValidator(schema, "p", FairLimiter(1)).fault('"x"')
        == "it takes too long to check."
    )


_WORKER = str(Path(schema_validator.__file__).with_name("validator_worker.py"))
#: The worker in an environment without the libraries that validate.
_WITHOUT_MODULES = f"""
import runpy, sys
sys.modules["jsonschema_rs"] = sys.modules["llguidance"] = None
runpy.run_path({_WORKER!r}, run_name="__main__")
"""


async def _check_schema() -> object:
    return await SchemaValidator({"uniqueItems": True}, "p", FairLimiter(1)).check()


async def _check_text() -> object:
    return await SchemaValidator({"uniqueItems": True}, "p", FairLimiter(1)).fault("[]")


async def _check_grammar() -> object:
    return await match_fault_in_process('start: "a"', "a", FairLimiter(1), whole=True)


@pytest.mark.parametrize("validate", [_check_schema, _check_text, _check_grammar])
@pytest.mark.parametrize("failure", ["interpreter", "script", "exit", "module"])
async def test_a_validator_that_cannot_start_fails_the_request(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    validate: Callable[[], Awaitable[object]],
    failure: str,
) -> None:
    if failure == "interpreter":
        monkeypatch.setattr("sys.executable", str(tmp_path / "missing"))
    elif failure == "script":
        monkeypatch.setattr(schema_validator, "_WORKER", tmp_path / "missing.py")
    else:
        worker = tmp_path / "worker.py"
        worker.write_text("raise SystemExit(3)" if failure == "exit" else _WITHOUT_MODULES)
        monkeypatch.setattr(schema_validator, "_WORKER", worker)
    async with asyncio.timeout(60):
        with pytest.raises(BackendError, match="validator process could not run"):
            await validate()


async def test_a_validator_that_never_answers_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(schema_validator, "_WORKER", worker)
    monkeypatch.setattr(schema_validator, "_SECONDS", 0.5)
    async with asyncio.timeout(60):
        assert await _check_text() == "it takes too long to check."
        await asyncio.gather(*(_check_grammar() for _ in range(3)))


async def test_a_cancelled_validation_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started, worker = tmp_path / "started", tmp_path / "worker.py"
    worker.write_text(f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid()))\n")
    worker.write_text(worker.read_text() + "time.sleep(60)")
    monkeypatch.setattr(schema_validator, "_WORKER", worker)
    task = asyncio.ensure_future(_check_text())
    async with asyncio.timeout(60):
        while not (started.exists() and started.read_text()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not Path(f"/proc/{started.read_text()}").exists()


@pytest.mark.parametrize("stream", [False, True])
async def test_server_answers_and_closes_if_the_validator_cannot_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: bool
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "missing"))
    # no grammar supports uniqueItems, so the validator has to check the schema and the answer
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    format = {"type": "json_schema", "name": "list", "schema": schema, "strict": False}
    server = Server(local(engine(["[1, 2]"])), MemoryStore())
    async with asyncio.timeout(60):
        answer = await server.post(stream=stream, text={"format": format})
        await server.close()
    assert "validator process could not run" in answer.text
