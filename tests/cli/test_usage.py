"""``antiphon usage`` against answers of the API."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from antiphon.cli import usage
from antiphon.cli.main import main
from antiphon.config.load import load

NOW = 20_000 * 86_400 + 7200


class _Server:
    """Answers with two pages of one bucket each."""

    def __init__(self) -> None:
        self.queries: list[dict[str, list[str]]] = []

    def get(self, path: str) -> Any:
        query = parse_qs(urlsplit(path).query)
        self.queries.append(query)
        at = int(query["page"][0]) if "page" in query else int(query["start_time"][0])
        results = [_result("small", 10), _result("large", 1_000)]
        bucket = {"start_time": at, "results": results}
        return {"data": [bucket], "next_page": None if "page" in query else str(at + 86_400)}


def _result(model: str, tokens: int) -> dict[str, Any]:
    fields = dict.fromkeys(usage.COLUMNS.values(), 0)
    names = {"model": model, "api_key_id": "", "project_id": "t"}
    return {**fields, **names, "input_tokens": tokens, "num_model_requests": 2, "latency_ms": 7}


@pytest.fixture
def fake_server(monkeypatch: pytest.MonkeyPatch) -> _Server:
    fake_server = _Server()
    monkeypatch.setattr(usage, "find_server", lambda loaded: fake_server)
    return fake_server


def test_prints_days_as_csv(fake_server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    groups = ("key", "model")
    usage.run(load({}), by_hour=False, periods=2, groups=groups, as_csv=True, now=NOW)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "day,key,model,requests,failed,input,cached,output,reasoning,tool_calls,mean_ms",
        "2024-10-03,-,large,2,0,1000,0,0,0,0,4",
        "2024-10-03,-,small,2,0,10,0,0,0,0,4",
        "2024-10-04,-,large,2,0,1000,0,0,0,0,4",
        "2024-10-04,-,small,2,0,10,0,0,0,0,4",
    ]
    first, second = fake_server.queries
    assert first["group_by[]"] == ["api_key_id", "model"] and "page" in second


def test_prints_hours_as_a_table(fake_server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    usage.run(load({}), by_hour=True, periods=1, groups=("model",), as_csv=False, now=NOW)
    out = capsys.readouterr().out
    assert "2024-10-04 02:00" in out and "large" in out and "1,000" in out and "mean_ms" in out


@pytest.mark.parametrize("flags", [["--last", "0"], ["--last", "x"], ["--by", "color"]])
def test_refuses_invalid_flags(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", *flags]) == 2
    assert "antiphon usage --help" in capsys.readouterr().err
