"""How this copy of Antiphon was installed, and the commands that install extras.

All installation hints come from this module. Their commands work in a checkout, in the container
image of ``deploy/``, and after the installation of a wheel. They also work if no package index has
the package ``antiphon``.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from msgspec import Struct

__all__ = [
    "Installation",
    "antiphon_command",
    "detect",
    "install_command",
    "needs_extra",
    "requirements_by_extra",
]

_PACKAGE = "antiphon"
#: Written by deploy/Dockerfile: the extras of the image, separated by commas.
_IMAGE_FILE = Path("/etc/antiphon-extras")
#: The extra of a requirement in a package's metadata: ``mcp<3,>=2.3; extra == 'mcp'``.
_EXTRA = re.compile(r"""\bextra *== *['"]([\w.-]+)['"]""")


class Installation(Struct, frozen=True, kw_only=True):
    """A copy of Antiphon on this machine.

    ``python``: the path of its Python interpreter. ``root``: the folder of the checkout (a clone of
    the repository). ``image_extras``: the extras (optional dependency groups) that the container
    image contains. ``requirements``: name of an extra → the packages that it installs.
    """

    kind: Literal["checkout", "container", "wheel"]
    python: Path
    root: Path | None = None
    has_pip: bool = True
    image_extras: tuple[str, ...] = ()
    requirements: Mapping[str, tuple[str, ...]] = {}

    def install_command(self, extra: str) -> str:
        """Return the shell command that installs an extra (an optional dependency group) into this
        copy of Antiphon."""
        if self.kind == "container":
            extras = ",".join(dict.fromkeys((*self.image_extras, extra)))
            return f"docker build -f deploy/Dockerfile --build-arg EXTRAS={extras} -t antiphon ."
        if self.root is not None:
            return f"{self._pip()} -e {_shell_path(self.root, f'[{extra}]')}"
        packages = self.requirements.get(extra) or (f"{_PACKAGE}[{extra}]",)
        return f"{self._pip()} {shlex.join(packages)}"

    def antiphon_command(self, arguments: str) -> str:
        """Return the shell command that runs ``antiphon`` with these arguments."""
        program = self.python.with_name(_PACKAGE)
        found = shutil.which(_PACKAGE)
        if self.kind == "container" or (found is not None and Path(found) == program):
            return f"{_PACKAGE} {arguments}"
        if program.exists():
            return f"{_shell_path(program)} {arguments}"
        return f"{_shell_path(self.python)} -m {_PACKAGE} {arguments}"

    def _pip(self) -> str:
        python = _shell_path(self.python)
        return f"{python} -m pip install" if self.has_pip else f"uv pip install --python {python}"


def detect(image_file: Path = _IMAGE_FILE) -> Installation:
    """Detect how this copy of Antiphon was installed. ``image_file``: a file that exists only in
    the container image. It lists the extras (optional dependency groups) in the image."""
    python, root = Path(sys.executable), Path(__file__).parents[2]
    if image_file.is_file():
        extras = tuple(image_file.read_text("utf-8").strip().split(","))
        return Installation(kind="container", python=python, image_extras=extras)
    has_pip = find_spec("pip") is not None
    if (root / "pyproject.toml").is_file():
        return Installation(kind="checkout", python=python, root=root, has_pip=has_pip)
    return Installation(
        kind="wheel", python=python, has_pip=has_pip, requirements=requirements_by_extra()
    )


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra (an optional dependency group) into this copy
    of Antiphon."""
    return detect().install_command(extra)


def antiphon_command(arguments: str) -> str:
    """Return the shell command that runs this copy of ``antiphon`` with these arguments."""
    return detect().antiphon_command(arguments)


def needs_extra(what: str, extra: str) -> str:
    """Return an error message that says how to install a missing extra. The message begins with
    ``what``, the description of the problem, and ends with the command that installs the extra."""
    return f"{what}. To install it: {install_command(extra)}"


def requirements_by_extra() -> dict[str, tuple[str, ...]]:
    """Return the packages of each extra, from the metadata of the installed package."""
    try:
        lines = requires(_PACKAGE) or []
    except PackageNotFoundError:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for line in lines:
        package, _, condition = line.partition(";")
        if (match := _EXTRA.search(condition)) is not None:
            found[match[1]] = (*found.get(match[1], ()), package.strip())
    return found


def _shell_path(path: Path, suffix: str = "") -> str:
    """Return ``path`` with ``suffix`` for a shell command: quoted, and relative to the working
    directory or to the home folder if possible."""
    here = Path.cwd()
    if path.is_relative_to(here) and here != Path(here.anchor):
        return shlex.quote(f"{path.relative_to(here)}{suffix}")
    if path.is_relative_to(Path.home()):
        return "~/" + shlex.quote(f"{path.relative_to(Path.home())}{suffix}")
    return shlex.quote(f"{path}{suffix}")
