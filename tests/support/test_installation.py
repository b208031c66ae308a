"""Hints to install something name a command that works for this kind of installation."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from antiphon.support import installation
from antiphon.support.installation import Installation, detect, needs_extra

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_checkout_names_its_interpreter_and_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "my checkout"
    (root / ".venv").mkdir(parents=True)
    copy = Installation(kind="checkout", python=root / ".venv/bin/python", root=root)
    monkeypatch.chdir(root)
    assert copy.install_command("mcp") == ".venv/bin/python -m pip install -e '.[mcp]'"
    assert copy.antiphon_command("doctor") == ".venv/bin/python -m antiphon doctor"
    monkeypatch.chdir(tmp_path)
    python, *_, target = shlex.split(copy.install_command("mcp"))
    assert (Path(python), target) == (Path("my checkout/.venv/bin/python"), "my checkout[mcp]")


def test_path_below_the_home_is_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir("/")
    copy = Installation(kind="checkout", python=tmp_path / "a/bin/python", root=tmp_path / "a")
    assert copy.install_command("x") == "~/a/bin/python -m pip install -e ~/'a[x]'"


def test_wheel_names_packages_because_an_index_may_lack_ours() -> None:
    copy = Installation(
        kind="wheel",
        python=Path("/v/bin/python"),
        requirements={"llama": ("xllamacpp==1", "llguidance<2,>=1.7")},
    )
    assert (
        copy.install_command("llama")
        == "/v/bin/python -m pip install xllamacpp==1 'llguidance<2,>=1.7'"
    )


def test_environment_without_pip_uses_uv() -> None:
    copy = Installation(kind="wheel", python=Path("/v/python"), has_pip=False)
    assert copy.install_command("x").startswith("uv pip install --python /v/python ")


def test_image_is_built_with_one_extra_more(tmp_path: Path) -> None:
    file = tmp_path / "extras"
    file.write_text("local,postgres\n")
    copy = detect(file)
    assert copy.kind == "container"
    assert "--build-arg EXTRAS=local,postgres,vllm " in copy.install_command("vllm")
    dockerfile = (ROOT / "deploy/Dockerfile").read_text("utf-8")
    assert "ARG EXTRAS=" in dockerfile and "> /etc/antiphon-extras" in dockerfile


def test_running_copy_is_a_checkout() -> None:
    copy = detect()
    assert (copy.kind, copy.root) == ("checkout", ROOT)
    assert copy.python == Path(sys.executable)


def test_metadata_names_the_packages_of_each_extra() -> None:
    found = installation.requirements_by_extra()
    for extra in ("llama", "programs", "sandbox"):
        declared = [
            re.split(r"[<>=;]", each)[0] for each in PROJECT["optional-dependencies"][extra]
        ]
        given = [re.split(r"[<>=;]", each)[0] for each in found[extra]]
        assert sorted(given) == sorted(name.replace(".wasm", "-wasm") for name in declared)


def test_no_other_module_words_an_install_command() -> None:
    for path in (ROOT / "antiphon").rglob("*.py"):
        if path.name != "installation.py":
            assert "pip install" not in path.read_text("utf-8"), path


def test_every_hint_names_an_extra_of_the_project() -> None:
    extras = PROJECT["optional-dependencies"].keys()
    named = set()
    for path in (ROOT / "antiphon").rglob("*.py"):
        found = re.findall(
            r'(?:needs_extra|needs_packages|require_package)\([^()]*?"([\w-]+)"\s*\)',
            path.read_text("utf-8"),
        )
        named.update(found)
    assert {"llama", "mcp", "hub", "documents"} <= named <= extras
    assert needs_extra("It is not installed", "mcp").startswith("It is not installed. To install")


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("bin/uv-receipt.toml", "uv tool install antiphon --with "),
        ("bin/pipx_metadata.json", "pipx inject antiphon "),
        ("archive-v0/x", "uvx --from 'antiphon[mcp]' antiphon"),
    ],
)
def test_environments_of_installers_are_changed_by_them(
    file: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / file
    path.parent.mkdir()
    path.touch()
    package = tmp_path / "site-packages" / "antiphon" / "support" / "installation.py"
    monkeypatch.setattr(installation, "__file__", str(package))
    copy = detect(prefix=path.parent)
    assert copy.install_command("mcp").startswith(command)
    assert copy.can_change == (copy.kind != "uvx")
    if copy.kind == "uvx":
        assert copy.antiphon_command("chat") == "uvx antiphon chat"
