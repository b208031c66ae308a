"""``antiphon install``: what it runs, and when it asks."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from antiphon.cli.install import CODE_PACKAGES, FEATURES, install, list_features
from antiphon.errors import SetupError
from antiphon.support.installation import Installation

ROOT = Path(__file__).parents[2]
PIP = ["/v/python", "-m", "pip", "install"]


class User:
    """A user at a terminal, who answers ``answer``. ``commands``: what was run."""

    def __init__(self, answer: str = "") -> None:
        self.answer = answer
        self.questions: list[str] = []
        self.commands: list[list[str]] = []

    def ask(self, question: str) -> str:
        self.questions.append(question)
        return self.answer

    def run(self, command: list[str]) -> int:
        self.commands.append(command)
        return 0


@pytest.fixture(autouse=True)
def copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    found = Installation(
        kind="wheel", python=Path("/v/python"), requirements={"mcp": ("mcp<3",), "web": ("lxml",)}
    )
    monkeypatch.setattr("antiphon.cli.install.detect", lambda: found)


def test_packages_of_several_features_are_installed_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    user = User()
    assert install(["mcp", "web"], is_confirmed=False, ask=user.ask, run=user.run) == 0
    assert user.commands == [[*PIP, "mcp<3", "lxml"]]
    assert "about 27 MB" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "runs"), [("", 1), ("y", 1), ("n", 0), ("what", 0)])
def test_user_is_asked(answer: str, runs: int) -> None:
    user = User(answer)
    code = install(["mcp"], is_confirmed=False, ask=user.ask, run=user.run)
    assert (len(user.commands), code) == (runs, 1 - runs)


def test_confirmed_installation_does_not_ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    user = User()
    assert install(["mcp"], is_confirmed=False, ask=user.ask, run=user.run) == 1
    assert "add --yes" in capsys.readouterr().out
    assert install(["mcp"], is_confirmed=True, ask=user.ask, run=user.run) == 0
    assert (user.questions, len(user.commands)) == ([], 1)


def test_copy_that_cannot_change_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Installation(kind="uvx", python=Path("/cache/archive-v0/x/bin/python"))
    monkeypatch.setattr("antiphon.cli.install.detect", lambda: found)
    with pytest.raises(SetupError, match=r"uvx --from 'antiphon\[mcp\]' antiphon"):
        install(["mcp"], is_confirmed=True)


def test_packages_for_code_are_installed_beside_those_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "code" / "bin" / "python"
    monkeypatch.setattr("antiphon.cli.install.code_python", lambda: python)
    user = User()
    assert install(["data", "web"], is_confirmed=True, run=user.run) == 0
    environment, packages, others = user.commands
    assert environment[1:] == ["-m", "venv", "--without-pip", str(tmp_path / "code")]
    assert packages == [
        *("/v/python", "-m", "pip", "--python", str(python), "install"),
        *("numpy", "pandas", "matplotlib"),
    ]
    assert others == [*PIP, "lxml"]
    python.parent.mkdir(parents=True)
    python.touch()
    assert install(["data"], is_confirmed=True, run=user.run) == 0
    assert user.commands[3:] == [packages]
    assert install(["data", "web"], is_confirmed=True, run=lambda _: 2) == 2


def test_unknown_feature_is_named() -> None:
    with pytest.raises(SetupError, match=r"unknown feature 'xyz' \(there are: .*documents"):
        install(["xyz"], is_confirmed=True)
    with pytest.raises(SetupError, match="unknown feature 'document'; did you mean documents"):
        install(["document"], is_confirmed=True)


def test_features_are_the_extras_of_one_machine() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    #: Parts of every installation, those of engines for GPUs, and those for development.
    others = {"llama", "hub", "transformers", "vllm", "ray", "dev"}
    features = FEATURES.keys() - CODE_PACKAGES.keys()
    assert project["optional-dependencies"].keys() - others == features
    assert len(list(list_features())) == len(FEATURES)
