"""Check an installed Antiphon: data files, worker processes, entry points, command, server.

``scripts/check_wheel.py`` runs this file by its path in an environment that has the wheel and no
checkout. Each check raises an exception if it fails."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
import tempfile
import urllib.request
from importlib import metadata
from pathlib import Path
from typing import Any

import antiphon

_TIMEOUT_S = 60
_CONFIG = """
port = 0
store = "{store}"
log_format = "json"

[models.echo]
engine = "scripted"
source = "Hello there."
"""


def main() -> None:
    """Run every check and report each on standard output."""
    checks = (
        check_location,
        check_public_names,
        check_entry_points,
        check_store_files,
        check_validator,
        check_documents,
        check_programs,
        check_sandbox,
        check_server,
    )
    for check in checks:
        note = check()
        sys.stdout.write(f"{check.__name__}: {note or 'ok'}\n")


def check_location() -> None:
    """The package comes from the environment, not from a checkout."""
    assert Path(str(antiphon.__file__)).is_relative_to(sys.prefix), antiphon.__file__
    assert antiphon.__version__ == metadata.version("antiphon")


def check_public_names() -> None:
    """Every public name can be imported."""
    for name in antiphon.__all__:
        getattr(antiphon, name)


def check_entry_points() -> str:
    """Every entry point of the package loads."""
    points = [
        point
        for point in metadata.distribution("antiphon").entry_points
        if point.group.startswith("antiphon.") or point.group == "console_scripts"
    ]
    for point in points:
        point.load()
    return ", ".join(f"{point.group}:{point.name}" for point in points)


def check_store_files() -> str:
    """The SQLite store applies its migrations; PostgreSQL's are readable."""
    from antiphon.store import open_store
    from antiphon.store.sql.queries import migrations, queries

    async def open_and_close(path: Path) -> None:
        store = await open_store(f"sqlite:{path}")
        await store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(open_and_close(Path(folder) / "responses.db"))
    importlib.import_module("antiphon.store.postgres.store")
    assert queries("antiphon.store.postgres")
    return f"{len(migrations('antiphon.store.postgres'))} migrations for PostgreSQL"


def check_validator() -> None:
    """The validator process starts and finds a fault."""
    from antiphon.backends.validation.schema_validator import SchemaValidator

    async def faults() -> list[str | None]:
        validator = SchemaValidator({"type": "integer"}, "text.format.schema")
        return [await validator.fault(text) for text in ("1", '"a"')]

    valid, invalid = asyncio.run(faults())
    assert valid is None and invalid, (valid, invalid)


def check_documents() -> None:
    """The document process starts and extracts text."""
    from antiphon.attachments.documents import Documents

    html = b"<html><body><h1>Harbour</h1></body></html>"
    text = asyncio.run(Documents().text(html, name="page.html", mime="text/html"))
    assert "Harbour" in text, text


def check_programs() -> str | None:
    """A JavaScript program runs."""
    from antiphon.sandbox.javascript import JavaScript

    if not JavaScript.is_installed():
        return "skipped: not available on this platform"
    javascript = JavaScript()
    try:
        state = asyncio.run(javascript.advance("text(6 * 7)", ()))
    finally:
        javascript.close()
    assert state.output == "42" and state.error is None, state
    return None


def check_sandbox() -> str | None:
    """A sandbox starts, with the agent's files from the wheel."""
    from antiphon.errors import SetupError
    from antiphon.sandbox.bubblewrap import BoxSetup, Bubblewrap

    async def python_version() -> str:
        sandbox = Bubblewrap(BoxSetup.detect())
        try:
            return await sandbox.check()
        finally:
            await sandbox.close()

    try:
        return f"Python {asyncio.run(python_version())}"
    except SetupError as error:
        return f"skipped: {error}"


def check_server() -> None:
    """The command serves a model from a file of settings, and answers a request."""
    program = Path(sys.executable).with_name("antiphon")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.strip() == f"antiphon {antiphon.__version__}", version.stdout
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "antiphon.toml"
        config.write_text(_CONFIG.format(store=(Path(folder) / "responses.db").as_posix()))
        server = subprocess.Popen(
            [program, "serve", "--config", config],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        try:
            response = _create(_wait_for_url(server))
        finally:
            server.terminate()
            server.communicate(timeout=_TIMEOUT_S)
        assert response["status"] == "completed", response
        assert response["output"][0]["content"][0]["text"] == "Hello there.", response


def _wait_for_url(server: subprocess.Popen[str]) -> str:
    """Return the server's URL from its log."""
    assert server.stderr is not None
    for line in server.stderr:
        record: dict[str, Any] = json.loads(line)
        if record.get("event") == "serving":
            return str(record["url"])
    raise AssertionError("the server ended before it served")


def _create(url: str) -> Any:
    body = json.dumps({"model": "echo", "input": "Hello?"}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/responses", body, headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
