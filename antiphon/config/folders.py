"""The folders of Antiphon in the home folder of its user and on its host."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _home(variable: str, otherwise: str) -> Path:
    """Return Antiphon's folder in an XDG base directory.

    ``variable``: the environment variable that contains the path of the base directory. If the
    variable is not set or contains a relative path, the base directory is the subfolder
    ``otherwise`` of the home folder. The XDG specification requires that relative paths are
    ignored.
    """
    value = os.environ.get(variable, "")  # noqa: TID251
    return (Path(value) if Path(value).is_absolute() else Path.home() / otherwise) / "antiphon"


def cache_folder() -> Path:
    """Return the folder for files that can be downloaded or computed again, such as models."""
    return _home("XDG_CACHE_HOME", ".cache")


def data_folder() -> Path:
    """Return the folder for data that must be kept, such as the database."""
    return _home("XDG_DATA_HOME", ".local/share")


def code_python() -> Path:
    """Return the Python interpreter of the environment that ``antiphon install data`` makes: code
    of models can import its packages. The environment may not exist. Of a server that runs as root,
    code runs as another user, who cannot read root's home folder."""
    is_root = sys.platform != "win32" and os.geteuid() == 0
    folder = Path("/opt/antiphon") if is_root else data_folder()
    return folder / "code" / "bin" / "python"


def state_folder() -> Path:
    """Return the folder in which the ``antiphon`` commands store data for later commands, such as
    the address of the server that was used last."""
    return _home("XDG_STATE_HOME", ".local/state")


def runtime_folder() -> Path:
    """Return the folder for the sockets of this user's servers on this host. It is a subfolder of
    the folder that XDG_RUNTIME_DIR names, or, if this variable is not set, of the folder for
    temporary files. The subfolder may not exist yet."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))  # noqa: TID251
    if runtime.is_absolute():
        return runtime / "antiphon"
    temporary = os.environ.get("TMPDIR", "") or "/tmp"  # noqa: TID251
    return Path(temporary) / f"antiphon-{os.geteuid()}"
