"""``antiphon key … --store`` with a SQLite store and with a running server."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli import keys
from antiphon.cli.main import main
from antiphon.store import open_store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:{tmp_path}/keys.db"
    monkeypatch.setenv("ANTIPHON_STORE", url)
    monkeypatch.chdir(tmp_path)
    return url


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Run the command and return what it printed."""
    assert main(["key", *words]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_limits_are_written_for_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--models", "a, b", "--background-runs", "3", "--tools", "mcp")
    table = run(capsys, "new", "ci", *words).partition("[[keys]]")[2]
    (key,) = tomllib.loads("[[keys]]" + table)["keys"]
    del key["sha256"]
    assert key == {
        "name": "ci",
        "tenant": "default",
        "background_runs": 3,
        "models": ["a", "b"],
        "tools": ["mcp"],
    }


def test_stored_keys_have_all_limits(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--models", "a,b", "--concurrent-requests", "3", "--tools", "mcp")
    run(capsys, "new", "ci", "--store", *words)
    shown = "concurrent_requests = 3  models = a, b  tools = mcp\n"
    assert run(capsys, "list", "--store").endswith(shown)


def test_keys_are_created_rotated_and_revoked(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("new", "ci", "--store", "--tenant", "team", "--tokens-per-day", "500")
    secret = run(capsys, *words).strip()
    assert secret.startswith("sk-")
    line = run(capsys, "list", "--store")
    assert line == f"ci  team  sk-…{secret[-4:]}  tokens_per_day = 500\n"
    assert "'ci' already" in run(capsys, *words, code=2)
    rotated = run(capsys, "rotate", "ci", "--store").strip()
    assert rotated != secret and rotated[-4:] in run(capsys, "list", "--store")
    assert run(capsys, "revoke", "ci", "--store") == "ci  revoked\n"
    assert run(capsys, "list", "--store") == ""
    assert "'ci' not found" in run(capsys, "revoke", "ci", "--store", code=2)


def test_store_can_be_named_by_its_url(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = f"sqlite:{tmp_path}/other.db"
    run(capsys, "new", "ci", "--store", other)
    run(capsys, "new", "local", "--store")
    assert run(capsys, "list", "--store", other).startswith("ci ")
    assert run(capsys, "list", "--store", f"{tmp_path}/other.db").startswith("ci ")
    assert run(capsys, "list", f"--store={store}").startswith("local ")
    assert "before --store" in run(capsys, "revoke", "--store", "local", code=2)
    assert "'mysql' is unknown" in run(capsys, "list", "--store", "mysql://x", code=2)


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("new", "--tokens-per-day", "5x"),
        ("new", "--store"),
        ("new", "a", "--store", "--tools", "search"),
        ("new", "a b", "--store"),
        ("new", "a", "--store", "--tokens-per-day", "x"),
        ("new", "a", "--store", "--tokens-per-day", "0"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(
    words: tuple[str, ...], store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = run(capsys, *words, code=2)
    assert error.startswith("antiphon: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("a", "--requests-per-minute", "0"),
            f'--requests-per-minute must be a whole number from 1 to {2**53}, not "0"\n',
        ),
        (
            ("a", "--store", "--requests-per-minute", "0"),
            f'--requests-per-minute must be a whole number from 1 to {2**53}, not "0"\n',
        ),
        (("a", "--store", "--tokens-per-day", str(2**60)), "--tokens-per-day must be a whole"),
        (("a", "--store", "--tools", "search"), '--tools must be a list of "apply_patch" or '),
        (("a", "--store", "--tenant", ""), "--tenant: Invalid 'tenant': string does not match"),
        (("a b", "--store"), "NAME: Invalid 'name': string does not match"),
    ],
)
def test_error_names_the_invalid_flag(
    words: tuple[str, ...], error: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run(capsys, "new", *words, code=2)
    assert error in printed and "$" not in printed.replace("{1,128}$", "")


class _Server:
    """A server that uses the store."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def is_listening(self) -> bool:
        return True

    def get(self, path: str) -> Any:
        self.calls.append(("GET", path))
        return {"data": []}

    def post(self, path: str, body: Any = None) -> Any:
        self.calls.append(("POST", path, body))
        return {"value": "sk-new"}

    def delete(self, path: str) -> Any:
        self.calls.append(("DELETE", path))
        return {}


async def test_a_store_in_use_is_reached_through_its_server(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import asyncio

    server = _Server()
    monkeypatch.setattr(keys, "find_server", lambda loaded: server)
    opened = await open_store(store)
    try:
        for words in (("new", "ci"), ("list",), ("rotate", "a/b"), ("revoke", "ci")):
            assert await asyncio.to_thread(main, ["key", *words, "--store"]) == 0
    finally:
        await opened.close()
    assert server.calls == [
        ("POST", "/antiphon/keys", {"name": "ci", "tenant": "default"}),
        ("GET", "/antiphon/keys"),
        ("POST", "/antiphon/keys/a/b/rotate", None),
        ("DELETE", "/antiphon/keys/ci"),
    ]
    assert capsys.readouterr().out == "sk-new\nsk-new\nci  revoked\n"
