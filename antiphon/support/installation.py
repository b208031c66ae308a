"""How this copy of Antiphon was installed, and the commands that install extras.

All installation hints come from this module. Their commands work in a checkout, in the container
image of ``deploy/``, and after the installation of a wheel. They also work if no package index has
the package ``antiphon``.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Literal

from msgspec import Struct

from antiphon.errors import SetupError

_PACKAGE = "antiphon"
#: Written by deploy/Dockerfile: the extras of the image, separated by commas.
_IMAGE_FILE = Path("/etc/antiphon-extras")
#: Folders of uv's cache in which `uvx` makes environments.
_UVX_FOLDERS = frozenset({"archive-v0", "environments-v2"})
_BINDING = "xllamacpp"
_TO_INSTALL = ". To install it: "
#: Where the maker of the binding publishes its builds for GPUs.
_GPU_BUILDS = "https://xorbitsai.github.io/xllamacpp/whl"
#: The extra of a requirement in a package's metadata: ``mcp<3,>=2.3; extra == 'mcp'``.
_EXTRA = re.compile(r"""\bextra *== *['"]([\w.-]+)['"]""")


#: How a copy was installed: a clone of the repository, the container image, a wheel in an
#: environment, the temporary environment of `uvx`, or the own environment that `uv tool` or pipx
#: made for it.
InstallationKind = Literal["checkout", "container", "wheel", "uvx", "uv tool", "pipx"]


class Installation(Struct, frozen=True, kw_only=True):
    """A copy of Antiphon on this machine.

    ``python``: the path of its Python interpreter. ``root``: the folder of the checkout (a clone of
    the repository). ``image_extras``: the extras (optional dependency groups) that the container
    image contains. ``requirements``: name of an extra → the packages that it installs.
    """

    kind: InstallationKind
    python: Path
    root: Path | None = None
    has_pip: bool = True
    image_extras: tuple[str, ...] = ()
    requirements: Mapping[str, tuple[str, ...]] = {}

    def install_command(self, extra: str) -> str:
        """Return the shell command that installs an extra (an optional dependency group) into this
        copy of Antiphon. ``extra``: the name of an extra, or several names with commas between."""
        if self.kind == "container":
            extras = ",".join(dict.fromkeys((*self.image_extras, extra)))
            return f"docker build -f deploy/Dockerfile --build-arg EXTRAS={extras} -t antiphon ."
        if self.root is not None:
            return f"{self._pip()} -e {_shell_path(self.root, f'[{extra}]')}"
        if self.kind == "uvx":  # its environment is a part of uv's cache
            return f"uvx --from '{_PACKAGE}[{extra}]' {_PACKAGE}"
        names = extra.split(",")
        packages = tuple(
            package
            for name in names
            for package in self.requirements.get(name) or (f"{_PACKAGE}[{name}]",)
        )
        if self.kind == "uv tool":
            more = " ".join(f"--with {shlex.quote(package)}" for package in packages)
            return f"uv tool install {_PACKAGE} {more}"
        if self.kind == "pipx":
            return f"pipx inject {_PACKAGE} {shlex.join(packages)}"
        return f"{self._pip()} {shlex.join(packages)}"

    def pip_command(self, python: Path, packages: Sequence[str]) -> list[str]:
        """Return the command, as a list of words, that installs packages into the environment of
        another interpreter, which need not have pip."""
        if self.has_pip:
            return [str(self.python), "-m", "pip", "--python", str(python), "install", *packages]
        return ["uv", "pip", "install", "--python", str(python), *packages]

    def gpu_command(self, build: str, version: str) -> str:
        """Return the shell command that installs a build of llama.cpp's Python binding for GPUs.

        ``build``: the name of the build, such as ``cu128``. ``version``: the version of the binding
        that is installed; another version might not fit.
        """
        python = _shell_path(self.python)
        command = f"{python} -m pip install --force-reinstall"
        if not self.has_pip:
            command = f"uv pip install --python {python} --reinstall-package {_BINDING}"
        return f"{command} --no-deps --index-url {_GPU_BUILDS}/{build} {_BINDING}=={version}"

    @property
    def can_change(self) -> bool:
        """Whether a command on this machine can add an extra to this copy. A container image must
        be built again, and `uvx` makes a new environment for each set of packages."""
        return self.kind not in ("container", "uvx")

    def antiphon_command(self, arguments: str) -> str:
        """Return the shell command that runs ``antiphon`` with these arguments."""
        if self.kind == "uvx":
            return f"uvx {_PACKAGE} {arguments}"
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


def detect(image_file: Path = _IMAGE_FILE, prefix: Path | None = None) -> Installation:
    """Detect how this copy of Antiphon was installed. ``image_file``: a file that exists only in
    the container image. It lists the extras (optional dependency groups) in the image. ``prefix``:
    the folder of the environment; by default that of this process."""
    prefix = prefix or Path(sys.prefix)
    python, root = Path(sys.executable), Path(__file__).parents[2]
    if image_file.is_file():
        extras = tuple(image_file.read_text("utf-8").strip().split(","))
        return Installation(kind="container", python=python, image_extras=extras)
    has_pip = importlib.util.find_spec("pip") is not None
    if (root / "pyproject.toml").is_file():
        return Installation(kind="checkout", python=python, root=root, has_pip=has_pip)
    return Installation(
        kind=_environment_kind(prefix),
        python=python,
        has_pip=has_pip,
        requirements=requirements_by_extra(),
    )


def _environment_kind(prefix: Path) -> InstallationKind:
    """Return who made the environment in this folder, by the files that uv and pipx leave there."""
    if (prefix / "uv-receipt.toml").is_file():
        return "uv tool"
    if (prefix / "pipx_metadata.json").is_file():
        return "pipx"
    if not _UVX_FOLDERS.isdisjoint(prefix.parts):
        return "uvx"
    return "wheel"


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
    return f"{what}{_TO_INSTALL}{install_command(extra)}"


@contextmanager
def needs_packages(what: str, extra: str) -> Iterator[None]:
    """Raise ``SetupError`` with the message of ``needs_extra`` if an import in the block fails."""
    try:
        yield
    except ImportError:
        raise SetupError(needs_extra(what, extra)) from None


def require_package(package: str, name: str, extra: str) -> None:
    """Raise ``SetupError`` if a Python package is not installed. ``package``: its name for imports.
    ``name``: its name in the message. ``extra``: the extra that installs it."""
    if importlib.util.find_spec(package) is None:
        raise SetupError(needs_extra(f"{name} is not installed", extra))


def is_missing_extra(message: str) -> bool:
    """Return whether ``needs_extra`` has made this message."""
    return _TO_INSTALL in message


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
