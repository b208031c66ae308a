"""The command line: the output of each command; errors are one line with exit code 2."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon import __version__
from antiphon.cli.commands.table import COMMANDS
from antiphon.cli.foreign_flags import FOREIGN_FLAGS
from antiphon.cli.main import main
from antiphon.config.keys import ApiKey
from antiphon.config.load import LoadedSettings, load
from antiphon.config.model import Model
from antiphon.config.options import options
from antiphon.config.settings import Settings
from antiphon.support.installation import antiphon_command

WAIT_S = 60

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate the working directory, the home and the environment; leave the process's logging."""
    monkeypatch.setattr("antiphon.bootstrap.serve.capture_libraries", lambda log: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Run a command; return its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def refusal(invoke: Invoke) -> Callable[..., str]:
    """Run a command that must fail; return its error line."""

    def run(*arguments: str) -> str:
        code, out, err = invoke(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("antiphon: ")
        assert err.count("\n") == 1 and err.endswith("\n")
        return err.removeprefix("antiphon: ").strip()

    return run


# --- help and flags ------------------------------------------------------------------------------


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(re.search(rf"^    {name} ", out, re.MULTILINE) for name in COMMANDS)


def test_no_command_serves(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[LoadedSettings] = []
    command = replace(COMMANDS["serve"], run=lambda loaded, arguments: served.append(loaded))
    monkeypatch.setattr("antiphon.cli.main.COMMANDS", {**COMMANDS, "serve": command})
    assert invoke()[0] == 0
    assert len(served) == 1


@pytest.mark.parametrize("word", ["--version", "version"])
def test_version_is_printed(capsys: pytest.CaptureFixture[str], word: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main([word])
    assert (caught.value.code, capsys.readouterr().out) == (0, f"antiphon {__version__}\n")


@pytest.mark.parametrize("words", [["help", "serve"], ["help"]])
def test_help_is_also_a_word(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {' '.join(['antiphon', *words[1:]])} [")


def test_help_of_serve_and_chat_lists_every_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts: list[str] = []
    for command in ("serve", "chat"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        texts.append(capsys.readouterr().out)
    for option in options(Settings).values():
        if option.flag is not None:
            here, there = texts if option.group != "Chat" else reversed(texts)
            assert re.search(rf"^  {option.flag}(?![\w-])", here, re.MULTILINE)
            shown = re.search(rf"^  {option.flag}(?![\w-])", there, re.MULTILINE)
            assert (shown is not None) == (option.name == "port")


def test_flags_set_the_settings(invoke: Invoke) -> None:
    given = ["--port", "9", "--cors-origins", "a,b", "--allow-unauthenticated", "--metrics=nobody"]
    code, out, _ = invoke("settings", *given)
    assert code == 0
    settings = tomllib.loads(out)
    assert settings["port"] == 9
    assert settings["cors_origins"] == ["a", "b"]
    assert settings["allow_unauthenticated"] is True
    assert settings["metrics"] == "nobody"


def test_no_flag_overrides_a_switch_of_the_environment(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_ALLOW_UNAUTHENTICATED", "true")
    assert "allow_unauthenticated = true" in invoke("settings")[1]
    assert "allow_unauthenticated = false" in invoke("settings", "--no-allow-unauthenticated")[1]


def test_settings_hides_upstream_keys(invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "up.toml"
    file.write_text(
        '[models.a]\nsource = "http://h"\nengine = "responses"\napi_key = "sk-1"\n'
        'engine_options = { headers = { authorization = "sk-2" }, body = { max_tokens = 4 } }\n'
    )
    code, out, _ = invoke("settings", "--config", str(file))
    assert code == 0 and "sk-1" not in out and "sk-2" not in out and '"max_tokens" = 4' in out
    assert tomllib.loads(out)["models"]["a"]["api_key"] == "hidden"


def test_settings_hides_webhook_secrets(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_WEBHOOK_SECRETS", "whsec_CANARY")
    code, out, _ = invoke("settings")
    assert code == 0 and "CANARY" not in out
    assert tomllib.loads(out)["webhook"]["secrets"] == "hidden"


def test_settings_hides_the_password_in_an_address(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_STORE", "postgresql://antiphon:CANARY@db/antiphon")
    code, out, _ = invoke("settings")
    assert code == 0 and "CANARY" not in out
    assert tomllib.loads(out)["store"] == "postgresql://hidden@db/antiphon"


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--prot", "1"], "unknown argument --prot; did you mean --port?"),
        (["serve", "--port"], "argument --port: expected one argument (antiphon serve"),
        (["serve", "--port", "x"], '--port must be a whole number from 0 to 65535, not "x"'),
        (["serve", "--por", "1"], "unknown argument --por; did you mean --port?"),
        (["chat", "--store", "x"], "unknown argument --store"),
        (["--nothing"], "unknown argument --nothing"),
        (["--verison"], "unknown argument --verison; did you mean --version?"),
        (["help", "srve"], "unknown command 'srve'; did you mean serve?"),
        (["srve"], "unknown command 'srve'; did you mean serve?"),
        (["serve", "--config", "absent.toml"], "absent.toml cannot be read: No such file"),
        (["serve", "--port", "0", "absent.gguf"], "There is no model 'absent.gguf'"),
        (["serve", "a=x", "a=y"], "two models are named 'a'"),
        (["serve", "--default-model", "x"], 'default_model "x" is not served'),
        (["serve", "--host", "0.0.0.0"], "there are no API keys"),
        (["pull", "nothing"], "There is no model 'nothing'"),
        (["chat", "--url", "nonsense:x"], "is not a server URL"),
        (["key", "old"], "invalid choice: 'old'"),
    ],
)
def test_invalid_arguments_print_one_line(
    refusal: Callable[..., str], arguments: list[str], words: str
) -> None:
    assert words in refusal(*arguments)


def test_flags_of_other_servers_name_ours(
    refusal: Callable[..., str],
) -> None:
    for words, expected in (
        (["m.gguf", "--max-model-len", "4096"], "--max-model-len: use --context-size"),
        (["--served-model-name=x"], "--served-model-name: write NAME=SOURCE"),
        (["-hf", "a/b"], f"without a flag: {antiphon_command('serve MODEL')}"),
        (["--api-key", "x"], f"make a key with `{antiphon_command('key new')}` and add it"),
        (["m.gguf", "-ngl", "99"], "-ngl: use --gpu-layers"),
        (["m", "--trust-remote-code"], "trust_remote_code = true in engine_options"),
        (["m", "--max_seq_len", "9"], "--max_seq_len: use --context-size"),
        (["m", "--prot", "9"], "--prot; did you mean --port?"),
    ):
        assert expected in refusal("serve", *words)


@pytest.mark.parametrize(
    "flag", ["--models-dir", "--log-colors", "--batch-size", "--runner", "--uds", "-ub", "--keep"]
)
def test_flag_without_a_counterpart_gets_no_wrong_hint(
    flag: str, refusal: Callable[..., str]
) -> None:
    assert refusal("serve", "m", flag, "9").rstrip().endswith(f"unknown argument {flag}")


def test_hints_name_flags_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    ours = set(re.findall(r"(?:^|\s)(--[a-z][\w-]*)", capsys.readouterr().out))
    assert not ours & FOREIGN_FLAGS.keys(), "our own flags are no other server's"
    named = {flag for text in FOREIGN_FLAGS.values() for flag in re.findall(r"--[\w-]+", text)}
    assert named <= ours


def test_flags_of_the_model_apply_to_the_only_one(
    invoke: Invoke, refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Model] = []

    def serve(settings: Settings, announce: Any, **_: Any) -> None:
        served.extend(settings.models.values())

    monkeypatch.setattr("antiphon.bootstrap.serve.serve", serve)
    monkeypatch.setattr("antiphon.http.server.serve.run", lambda given: None)
    flags = ["--context-size", "512", "--engine", "scripted", "--tool-format", "hermes"]
    flags += ["--temperature", "0.5", "--aliases", "gpt-5.5,x", "--template", "t.jinja"]
    assert invoke("serve", "m=Hi.", *flags)[0] == 0
    assert served == [
        Model(
            source="Hi.",
            context_size=512,
            engine="scripted",
            tool_format="hermes",
            temperature=0.5,
            aliases=("gpt-5.5", "x"),
            template=Path("t.jinja"),
        )
    ]
    message = refusal("serve", "a=x", "b=y", "--context-size", "512")
    assert message.startswith("--context-size is for one model, but 2 are served: name one")
    message = refusal("serve", "a=x", "--context-size", "big")
    assert message == '--context-size must be a whole number, 1 or more, not "big"'
    assert "did you mean --context-size" in refusal("serve", "a=x", "--context-siez", "1")


def test_port_in_use_is_an_error(refusal: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} on 127.0.0.1 is in use" in refusal("serve", "--port", str(port))


def test_invalid_model_file_is_an_error(refusal: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF and then nonsense")
    assert "broken.gguf" in refusal("serve", "--port", "0", "broken.gguf")


def test_missing_extra_names_the_package(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    (tmp_path / "m.gguf").touch()
    assert "[llama]" in refusal("serve", "--port", "0", "m.gguf")


def test_ctrl_c_exits_with_130(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("antiphon.cli.chat.chat", interrupted)
    assert invoke("chat") == (130, "", "")


# --- the small commands --------------------------------------------------------------------------

FILE = """
port = 81
chat.key = "sk-CANARY"
[models.tiny]
source = "tiny.gguf"
temperature = 0.5
template_kwargs = { deep = { a = true } }
[[keys]]
tenant = "t"
sha256 = "00"
"""


def test_settings_prints_values_with_their_origin(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("antiphon.toml").write_text(FILE)
    monkeypatch.setenv("ANTIPHON_DRAIN_S", "3")
    monkeypatch.setenv("ANTIPHON_ENCRYPTION_KEYS", "a:CANARY,b:CANARY")
    code, out, err = invoke("settings", "--log-level", "error")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    for line in (
        "port = 81  # antiphon.toml",
        "drain_s = 3.0  # ANTIPHON_DRAIN_S",
        'log_level = "error"  # --log-level',
        'host = "127.0.0.1"  # default',
        "# url is not set  # default",
        'encryption_keys = "hidden"  # ANTIPHON_ENCRYPTION_KEYS',
        '[models."tiny"]  # antiphon.toml',
    ):
        assert line in lines
    assert "CANARY" not in out


def test_settings_output_is_an_equivalent_file(invoke: Invoke) -> None:
    Path("antiphon.toml").write_text(FILE.replace('chat.key = "sk-CANARY"', ""))
    before = load(environ={}).settings
    Path("again.toml").write_text(invoke("settings")[1])
    assert load(environ={}, file=Path("again.toml")).settings == before


def test_new_key_matches_the_digest_printed_with_it(invoke: Invoke) -> None:
    code, out, err = invoke("key", "new", "--tenant", 'team "a"')
    key, _, snippet = out.partition("\n\n")
    assert (code, len(key)) == (0, 46)
    assert key.startswith("sk-") and "only once" in err
    Path("antiphon.toml").write_text(snippet)
    digest = hashlib.sha256(key.encode()).hexdigest()
    assert load(environ={}).settings.keys == (ApiKey(tenant='team "a"', sha256=digest),)
    assert invoke("key", "new")[1] != out


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def test_models_lists_configured_and_downloaded_models(invoke: Invoke, tmp_path: Path) -> None:
    Path("antiphon.toml").write_text(FILE + '[models.far]\nsource = "owner/Far:Q4_0"\n')
    Path("tiny.gguf").touch()
    fetched = tmp_path / "cache" / "antiphon" / "models" / "hf" / "a" / "b.gguf"
    fetched.parent.mkdir(parents=True)
    fetched.write_bytes(b"0" * 2_000_000)
    code, out, _ = invoke("models", "--port", str(free_port()))
    assert code == 0
    assert out.splitlines() == [
        "tiny  tiny.gguf  tiny.gguf",
        "far  owner/Far:Q4_0  not downloaded yet",
        f"{fetched}  2 MB",
    ]


def test_pull_prints_the_path(invoke: Invoke) -> None:
    Path("here.gguf").touch()
    assert invoke("pull", "here.gguf") == (0, "here.gguf\n", "")


# --- the server, as operators run it -------------------------------------------------------------

SCRIPTED = """
port = 0
store = "memory:"
sandbox.kind = "off"
file_search.embeddings = "off"
web_search.engine = "off"
stall_log_ms = 0  # a busy machine must not add lines to the log
[models.echo]
engine = "scripted"
source = "Hello there."
aliases = ["gpt-5.5"]
"""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        (tmp_path / "antiphon.toml").write_text(SCRIPTED)
        process = subprocess.Popen(
            [sys.executable, "-m", "antiphon", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_its_url_and_stops_on_a_signal(
    serve: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = serve()
    assert process.stderr is not None
    banner = [process.stderr.readline().strip()]
    while not banner[-1].startswith("Chat: "):
        assert process.poll() is None
        banner.append(process.stderr.readline().strip())
    found = re.fullmatch(
        rf"Antiphon {re.escape(__version__)} at (http://127\.0\.0\.1:\d+/v1)", banner[0]
    )
    assert found is not None
    assert banner[1] == "echo · also gpt-5.5"
    assert any(line.startswith("Ready: ") and "file_search" in line for line in banner)
    assert "Not ready: web_search. The setting web_search is off." in banner
    assert f"antiphon chat --url {found[1].removesuffix('/v1')} ·" in banner[-1]
    request = urllib.request.Request(
        f"{found[1]}/responses",
        data=json.dumps({"model": "gpt-5.5", "input": "hi"}).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        assert json.load(answer)["output"][0]["content"][0]["text"] == "Hello there."
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (0, "")
    assert "200 POST /v1/responses gpt-5.5" in err and "Traceback" not in err


@pytest.mark.e2e
def test_models_of_the_running_server_are_managed(
    serve: Callable[..., subprocess.Popen[str]], invoke: Invoke, refusal: Callable[..., str]
) -> None:
    process = serve()
    assert process.stderr is not None
    found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stderr.readline())
    assert found is not None
    where = ("--port", found[1])
    assert "  echo  loaded\n" in invoke("models", *where)[1]
    assert invoke("models", "unload", "gpt-5.5", *where)[:2] == (0, "echo  unloaded\n")
    assert "  echo  unloaded\n" in invoke("models", "list", *where)[1]
    assert invoke("models", "load", "echo", *where)[:2] == (0, "echo  loaded\n")
    assert "has no files on this server" in refusal("models", "pull", "echo", *where)
    assert "'none' does not exist" in refusal("models", "load", "none", *where)
    assert "name a model" in refusal("models", "load", *where)
    Path("here.gguf").touch()
    assert invoke("models", "pull", "here.gguf", *where)[1] == "here.gguf\n"


@pytest.mark.e2e
def test_json_log_format_prints_json_lines(serve: Callable[..., subprocess.Popen[str]]) -> None:
    process = serve("--log-format", "json")
    assert process.stderr is not None
    first = json.loads(process.stderr.readline())
    assert first["event"] == "serving"
    assert first["models"] == ["echo"]
    assert "file_search by words" in first["ready"]
    assert first["missing"]["web_search"] == "The setting web_search is off."
    assert first["url"].startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=WAIT_S)[1] == ""
    assert process.returncode == 0


def test_files_in_the_working_folder_do_not_replace_modules(tmp_path: Path) -> None:
    """``python -m`` puts the working folder first on the path of imports."""
    for name in ("json", "signal", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user')")
    command = [sys.executable, "-m", "antiphon", "serve", "--no-such-flag"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S
    )
    assert ended.returncode == 2
    assert "unknown argument --no-such-flag" in ended.stderr


def test_working_folder_may_be_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    command = ["sh", "-c", 'rmdir "$0" && exec "$@"', str(folder), sys.executable, "-m", "antiphon"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [*command, "--version"], cwd=folder, env=environment, capture_output=True, timeout=WAIT_S
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
