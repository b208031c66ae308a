"""``antiphon tenant`` and ``antiphon audit``, with a server that is not there."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from antiphon.cli import tenants
from antiphon.cli.client import RequestFailed
from antiphon.cli.main import main

ARCHIVE = b'{"type":"tenant"}\n{"type":"end"}\n'


class _Server:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.breaks = False

    def copy(self, path: str, file: IO[bytes]) -> None:
        self.calls.append(f"GET {path}")
        file.write(ARCHIVE)
        if self.breaks:
            raise RequestFailed("incomplete")

    def delete(self, path: str) -> Any:
        self.calls.append(f"DELETE {path}")

    def get(self, path: str) -> Any:
        self.calls.append(f"GET {path}")
        number = len(self.calls)
        event = {
            "type": "api_key.created",
            "target": "ci",
            "effective_at": number,
            "actor": {"key": "root" if number == 1 else None, "tenant": None, "address": None},
        }
        return {"data": [event], "has_more": number < 2, "last_id": f"audit_{number}"}


@pytest.fixture
def fake_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Server:
    fake_server = _Server()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tenants, "find_server", lambda loaded: fake_server)
    return fake_server


def test_an_archive_is_written_whole_or_not_at_all(fake_server: _Server, tmp_path: Path) -> None:
    words = ["tenant", "export", "team/a", "--output", "a.jsonl"]
    assert main(words) == 0
    assert fake_server.calls == ["GET /antiphon/tenants/team%2Fa/export"]
    assert (tmp_path / "a.jsonl").read_bytes() == ARCHIVE
    (tmp_path / "a.jsonl").unlink()
    fake_server.breaks = True
    assert main(words) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("answer", "code"), [("t\n", 0), ("x\n", 2), ("", 2)])
def test_deletion_asks_for_the_name(
    fake_server: _Server, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert main(["tenant", "delete", "t"]) == code
    assert fake_server.calls == (["DELETE /antiphon/tenants/t"] if code == 0 else [])
    assert main(["tenant", "delete", "t", "--yes"]) == 0


def test_acts_are_listed_over_pages(
    fake_server: _Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--by", "root", "--last", "150"]) == 0
    assert fake_server.calls == [
        "GET /antiphon/audit?key=root&limit=100",
        "GET /antiphon/audit?key=root&limit=100&after=audit_1",
    ]
    assert capsys.readouterr().out.splitlines() == [
        "1970-01-01 00:00:01  api_key.created  ci  by root",
        "1970-01-01 00:00:02  api_key.created  ci  by a local command",
    ]
