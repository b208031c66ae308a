"""Starting coding agents: the profile that each finds, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli.client import Server
from antiphon.cli.launch import CLIENTS, launch
from antiphon.cli.main import main
from antiphon.errors import SetupError

WAIT_S = 60
Json = dict[str, Any]

#: Writes down its arguments, its environment and the files of its profile.
CLIENT = """#!{python}
import json, os, pathlib, sys
folder = pathlib.Path({profile})
files = {{path.name: path.read_text() for path in folder.rglob("*") if path.is_file()}}
pathlib.Path({report!r}).write_text(
    json.dumps({{"argv": sys.argv[1:], "env": dict(os.environ), "files": files, "at": str(folder)}})
)
sys.exit(3)
"""
#: The environment variable with the folder of each client's profile.
PROFILES = {
    "codex": "os.environ['CODEX_HOME']",
    "claude": "os.environ['CLAUDE_CONFIG_DIR']",
    "opencode": "os.environ['OPENCODE_CONFIG']).parent.joinpath('.'",
    "pi": "os.environ['PI_CODING_AGENT_DIR']",
}


class _Exchange(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers: Json = {
            "/v1/models": {
                "data": [{"id": "tiny"}],
                "models": [{"slug": "tiny", "context_window": 4096}, {"slug": "big"}],
            },
            "/openapi.json": {"paths": {path: {} for path in self.server.paths}},  # type: ignore[attr-defined]
        }
        body = json.dumps(answers[self.path]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def listening() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Exchange) as server:
        server.paths = ["/v1/responses", "/v1/messages"]  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join(WAIT_S)


@pytest.fixture
def url(listening: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{listening.server_address[1]}"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Install a program that stands for a client; return the file of its report."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def write(name: str) -> Path:
        report = tmp_path / "report.json"
        program = programs / name
        program.write_text(
            CLIENT.format(python=sys.executable, profile=PROFILES[name], report=str(report))
        )
        program.chmod(0o755)
        return report

    return write


def run(url: str, client: str, report: Path, **options: Any) -> Json:
    assert launch(Server(url, "sk-1"), client, ["do", "it"], **options) == 3
    told: Json = json.loads(report.read_text())
    assert not Path(told["at"]).exists(), "the profile is deleted"
    return told


def test_codex_finds_server_model_and_no_telemetry(
    url: str, install: Callable[[str], Path]
) -> None:
    report = run(url, "codex", install("codex"))
    config = tomllib.loads(report["files"]["config.toml"])
    assert (config["model"], config["model_provider"]) == ("tiny", "antiphon")
    assert config["model_providers"]["antiphon"] == {
        "name": "Antiphon",
        "base_url": f"{url}/v1",
        "env_key": "ANTIPHON_API_KEY",
        "wire_api": "responses",
        "model_catalog_url": f"{url}/v1/models",
    }
    assert (config["analytics"]["enabled"], config["check_for_update_on_startup"]) == (False,) * 2
    assert (report["argv"], report["env"]["ANTIPHON_API_KEY"]) == (["do", "it"], "sk-1")


def test_opencode_has_folders_of_its_own(url: str, install: Callable[[str], Path]) -> None:
    report = run(url, "opencode", install("opencode"), model="big")
    config = json.loads(report["files"]["opencode.json"])
    provider = config["provider"]["antiphon"]
    assert provider["options"] == {"baseURL": f"{url}/v1", "apiKey": "sk-1"}
    assert provider["models"]["big"]["limit"] == {"context": 32768, "output": 8000}
    assert (config["autoupdate"], config["share"]) == (False, "disabled")
    for kind in ("CONFIG", "DATA", "CACHE", "STATE"):
        assert report["env"][f"XDG_{kind}_HOME"].startswith(report["at"])


def test_pi_gets_its_provider_before_the_users_arguments(
    url: str, install: Callable[[str], Path]
) -> None:
    report = run(url, "pi", install("pi"))
    assert report["argv"] == ["--provider", "antiphon", "--model", "tiny", "do", "it"]
    (model,) = json.loads(report["files"]["models.json"])["providers"]["antiphon"]["models"]
    assert model == {"id": "tiny", "contextWindow": 4096, "maxTokens": 2048}
    assert report["env"]["PI_TELEMETRY"] == "0"


def test_claude_needs_the_messages_api(
    url: str,
    listening: ThreadingHTTPServer,
    install: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a key for another server")
    report = install("claude")
    told = run(url, "claude", report)
    assert told["env"]["ANTHROPIC_BASE_URL"] == url
    assert told["env"]["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert told["env"]["ANTHROPIC_MODEL"] == told["env"]["ANTHROPIC_SMALL_FAST_MODEL"] == "tiny"
    assert told["env"]["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "4096"
    assert (told["env"]["ANTHROPIC_AUTH_TOKEN"], told["env"]["ANTHROPIC_API_KEY"]) == ("sk-1", "")
    assert json.loads(told["files"]["settings.json"])["disableAutoMode"] == "disable"
    listening.paths = ["/v1/responses"]  # type: ignore[attr-defined]
    with pytest.raises(SetupError, match=r"claude needs /v1/messages, which .* does not offer"):
        launch(Server(url), "claude", [])


def test_ctrl_c_is_for_the_client(url: str, install: Callable[[str], Path], tmp_path: Path) -> None:
    report = install("codex")
    program = tmp_path / "bin" / "codex"
    program.write_text(
        f"#!{sys.executable}\nimport os, signal, time\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(30)\n"
        f"except KeyboardInterrupt:\n    open({str(report)!r}, 'w').close()\n"
    )
    before = signal.getsignal(signal.SIGINT)
    assert launch(Server(url), "codex", []) == 0
    assert report.exists() and signal.getsignal(signal.SIGINT) is before


def test_home_is_left_alone(url: str, install: Callable[[str], Path], tmp_path: Path) -> None:
    for client in CLIENTS:
        run(url, client, install(client))
    assert not (tmp_path / "home").exists()


def test_errors_say_what_to_do(
    url: str,
    install: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)
    assert main(["launch", "--url", url, "codex"]) == 2
    assert "codex is not installed: npm install -g @openai/codex" in capsys.readouterr().err
    install("codex")
    assert main(["launch", "--url", url, "--model", "none", "codex"]) == 2
    assert "does not serve 'none'; it serves tiny, big" in capsys.readouterr().err
    assert main(["launch", "--url", url, "codex", "exec", "--json"]) == 3, "its own exit code"
