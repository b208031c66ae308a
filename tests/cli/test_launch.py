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
                "models": [
                    {
                        "slug": "tiny",
                        "context_window": 4096,
                        "input_modalities": ["text", "image"],
                        "supported_reasoning_levels": [{"effort": "low", "description": ""}],
                    },
                    {"slug": "big"},
                ],
            },
        }
        body = json.dumps(answers[self.path]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_OPTIONS(self) -> None:
        self.send_response(405 if self.path in self.server.paths else 404)  # type: ignore[attr-defined]
        self.end_headers()

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
        "name": "OpenAI",
        "base_url": f"{url}/v1",
        "env_key": "ANTIPHON_API_KEY",
        "wire_api": "responses",
        "supports_websockets": True,
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
    assert provider["models"]["big"]["reasoning"] is False
    assert provider["models"]["big"]["modalities"] == {"input": ["text"], "output": ["text"]}
    assert (config["autoupdate"], config["share"]) == (False, "disabled")
    for kind in ("CONFIG", "DATA", "CACHE", "STATE"):
        assert report["env"][f"XDG_{kind}_HOME"].startswith(report["at"])


def test_pi_gets_its_provider_before_the_users_arguments(
    url: str, install: Callable[[str], Path]
) -> None:
    report = run(url, "pi", install("pi"))
    assert report["argv"] == ["--provider", "antiphon", "--model", "tiny", "do", "it"]
    (model,) = json.loads(report["files"]["models.json"])["providers"]["antiphon"]["models"]
    expected = {"id": "tiny", "contextWindow": 4096, "maxTokens": 2048, "input": ["text", "image"]}
    assert model == {**expected, "reasoning": True}
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
    assert told["env"]["CLAUDE_CODE_ALWAYS_ENABLE_EFFORT"] == "1"
    assert (told["env"]["ANTHROPIC_AUTH_TOKEN"], told["env"]["ANTHROPIC_API_KEY"]) == ("sk-1", "")
    assert json.loads(told["files"]["settings.json"])["disableAutoMode"] == "disable"
    listening.paths = ["/v1/responses"]  # type: ignore[attr-defined]
    with pytest.raises(SetupError, match=r"claude needs /v1/messages, which .* does not offer"):
        launch(Server(url), "claude", [])


#: Writes a session and whom the user trusts, and leaves a daemon behind.
FORGETFUL = """#!{python}
import os, pathlib, subprocess, sys
folder = pathlib.Path(os.environ["CODEX_HOME"])
sessions = folder / "sessions"
print(*[path.name for path in sessions.iterdir()], *(["trusted"] if "projects" in
    (folder / "config.toml").read_text() else []), flush=True)
(sessions / "one.jsonl").write_text("")
with (folder / "config.toml").open("a") as config:
    config.write('[projects."/work"]\\ntrust_level = "trusted"\\n')
daemon = "import signal, time; signal.signal(signal.SIGHUP, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", daemon], start_new_session=True)
print(child.pid, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="daemons are found in /proc")
def test_sessions_stay_and_daemons_end(
    url: str, install: Callable[[str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    install("codex")
    program = tmp_path / "bin" / "codex"
    program.write_text(FORGETFUL.format(python=sys.executable))
    said: list[str] = []
    for _ in range(2):
        assert launch(Server(url), "codex", []) == 0
        said += capfd.readouterr().out.splitlines()
    before, first, after, second = said
    assert (before, after) == ("", "one.jsonl trusted")
    assert not any(map(is_alive, (first, second)))


def is_alive(pid: str) -> bool:
    try:
        return bool(Path("/proc", pid, "environ").read_bytes())
    except OSError:  # it has ended, perhaps without a parent that has noticed it
        return False


def test_small_context_is_told(
    url: str, install: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run(url, "claude", install("claude"))
    assert "tiny has 4096 tokens; claude needs about 32000" in capsys.readouterr().err


def test_own_profile_of_the_user_is_used(
    url: str, install: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = install("codex")
    (tmp_path / "bin" / "codex").write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"json.dump([sys.argv[1:], dict(os.environ)], open({str(report)!r}, 'w'))\n"
    )
    monkeypatch.delenv("CODEX_HOME", raising=False)
    assert launch(Server(url, "sk-1"), "codex", ["exec"], own_profile=True) == 0
    arguments, environment = json.loads(report.read_text())
    assert "CODEX_HOME" not in environment and environment["ANTIPHON_API_KEY"] == "sk-1"
    options, last = arguments[:-1], arguments[-1]
    assert options[::2] == ["-c"] * (len(options) // 2) and last == "exec"
    config = tomllib.loads("\n".join(options[1::2]))
    assert config["model_providers"]["antiphon"]["base_url"] == f"{url}/v1"
    own = tmp_path / "home" / ".pi" / "agent"
    own.mkdir(parents=True)
    (own / "settings.json").write_text('{"theme": "light"}')
    told = run(url, "pi", install("pi"), own_profile=True)
    assert json.loads(told["files"]["settings.json"]) == {"theme": "light"}


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


def test_request_to_end_is_for_the_client_too(
    url: str, install: Callable[[str], Path], tmp_path: Path
) -> None:
    install("codex")
    (tmp_path / "bin" / "codex").write_text(
        f"#!{sys.executable}\nimport os, signal, time\n"
        "os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(30)\n"
    )
    assert launch(Server(url), "codex", []) == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


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
