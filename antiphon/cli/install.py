"""``antiphon install``: installs the packages of features that a small installation lacks.

Most features need packages beside Antiphon. The code that models write needs packages in an
environment of its own, because it must not import those of the server.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from antiphon.config.folders import code_python
from antiphon.config.options import did_you_mean
from antiphon.errors import SetupError
from antiphon.sandbox.bubblewrap import system_python
from antiphon.support.installation import detect

from .commands.base import print_line

#: What a feature adds: its description, and the size of its download in megabytes, measured on
#: Linux with x86-64.
Feature = tuple[str, int]

#: Extra → what it adds.
FEATURES: Mapping[str, Feature] = {
    "local": ("everything below up to webhooks", 200),
    "documents": ("PDF and office files", 39),
    "embeddings": ("search in files by meaning", 108),
    "fetch": ("files and images by URL", 3),
    "harmony": ("gpt-oss", 8),
    "images": ("images in all formats", 7),
    "mcp": ("MCP servers", 4),
    "programs": ("programs that call tools", 10),
    "sandbox": ("code execution, where bubblewrap is not installed", 1),
    "upstream": ("models on other servers", 3),
    "web": ("reading of web pages", 23),
    "webhooks": ("webhooks", 3),
    "audio": ("transcripts of speech", 129),
    "ddgs": ("web search without a key", 30),
    "objects": ("files in object storage", 6),
    "oidc": ("sign-in with OpenID Connect", 1),
    "openvino": ("the engine OpenVINO", 88),
    "otel": ("traces", 2),
    "postgres": ("PostgreSQL as the store", 3),
    "redis": ("a message bus between processes", 1),
    "data": ("numpy, pandas and matplotlib for code that models write", 52),
}
#: Feature → the packages that code of models can then import.
CODE_PACKAGES: Mapping[str, tuple[str, ...]] = {"data": ("numpy", "pandas", "matplotlib")}


def list_features() -> Iterator[str]:
    """Yield a line for each feature."""
    for name, (what, megabytes) in FEATURES.items():
        yield f"{name:<12}{megabytes:>4} MB  {what}"


def install(
    names: Sequence[str],
    *,
    is_confirmed: bool,
    ask: Callable[[str], str] = input,
    run: Callable[[list[str]], int] = subprocess.call,
) -> int:
    """Install the packages of features into this copy of Antiphon, after a confirmation.

    ``is_confirmed``: whether the user has confirmed already. Without it, a user at a terminal is
    asked, and otherwise the command is only printed. Returns the exit code. Raises ``SetupError``
    for an unknown feature, and for a copy that cannot be changed.
    """
    for name in names:
        if name not in FEATURES:
            hint = did_you_mean(name, FEATURES) or f" (there are: {', '.join(FEATURES)})"
            raise SetupError(f"unknown feature {name!r}{hint}")
    copy = detect()
    python = code_python()
    packages = [package for name in names for package in CODE_PACKAGES.get(name, ())]
    commands = [] if python.exists() or not packages else [_code_environment(python)]
    commands += [copy.pip_command(python, packages)] if packages else []
    if extras := ",".join(name for name in names if name not in CODE_PACKAGES):
        command = copy.install_command(extras)
        if not copy.can_change:
            raise SetupError(f"this copy cannot be changed. Use instead: {command}")
        commands.append([str(Path(word).expanduser()) for word in shlex.split(command)])
    megabytes = sum(FEATURES[name][1] for name in names)
    print_line(f"This downloads about {megabytes} MB: {'; '.join(map(shlex.join, commands))}")
    if not is_confirmed and not sys.stdin.isatty():
        print_line("Nothing is installed. To install without a question, add --yes.")
        return 1
    if not is_confirmed and ask("Install? [Y/n] ").lower() not in _YES:
        return 1
    return next((code for words in commands if (code := run(words))), 0)


def _code_environment(python: Path) -> list[str]:
    """Return the command that makes the environment for the code of models, with the interpreter
    ``python``. Raises ``SetupError``."""
    if sys.platform != "linux":
        raise SetupError("data: code of models runs only on Linux")
    return [system_python(), "-m", "venv", "--without-pip", str(python.parents[1])]


_YES = ("", "y", "yes")
