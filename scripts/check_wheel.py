"""Check a built wheel: its files, and its behaviour when installed in a fresh environment.

``python -m scripts.check_wheel dist`` checks the only wheel and the only sdist in the folder
``dist``. It compares the wheel's files with the package in the checkout, and with the wheel that
hatchling builds from the sdist. Then it installs the wheel with a few extras in a temporary
virtual environment, and runs ``scripts/installed_checks.py`` there. Needs only the standard
library and hatchling."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Extras that the checks use: worker processes, the PostgreSQL store, programs, sandboxes.
EXTRAS = "documents,postgres,programs,sandbox,upstream"


def main(folder: str) -> int:
    """Check the wheel in ``folder``. Returns the exit status."""
    wheels, sdists = (sorted(Path(folder).glob(each)) for each in ("*.whl", "*.tar.gz"))
    if (len(wheels), len(sdists)) != (1, 1):
        return _fail(f"{folder} has {len(wheels)} wheels and {len(sdists)} sdists, not one of each")
    wheel = wheels[0].resolve()
    contents = _contents(wheel)
    missing = _package_files() - contents.keys()
    if missing:
        return _fail(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    with tempfile.TemporaryDirectory() as temporary:
        if _contents(_wheel_of(sdists[0], Path(temporary))) != contents:
            return _fail(f"{sdists[0].name} builds another wheel than {wheel.name}")
    with tempfile.TemporaryDirectory(prefix="antiphon-wheel-") as temporary:
        Path(temporary).chmod(0o755)  # a server run by root starts sandboxes as another user
        python = _install(wheel, Path(temporary) / "venv")
        # -I: neither the working directory nor PYTHONPATH may lead to the checkout.
        command = [str(python), "-I", str(ROOT / "scripts" / "installed_checks.py")]
        return subprocess.run(command, cwd=temporary, check=False).returncode


def _contents(wheel: Path) -> dict[str, int]:
    """Return the checksums of the wheel's files by their names."""
    return {each.filename: each.CRC for each in zipfile.ZipFile(wheel).infolist()}


def _wheel_of(sdist: Path, folder: Path) -> Path:
    """Build a wheel from an sdist in ``folder``. Returns its path."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = (source / "dist").iterdir()
    return wheel


def _package_files() -> set[str]:
    """Return the paths of the package's files in the checkout, without caches."""
    paths = (path for path in (ROOT / "antiphon").rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in paths if "__pycache__" not in path.parts}


def _install(wheel: Path, folder: Path) -> Path:
    """Install the wheel in a new virtual environment. Returns its interpreter."""
    venv.create(folder, with_pip=True, symlinks=sys.platform != "win32")
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    command = [str(python), "-m", "pip", "install", "-q", f"antiphon[{EXTRAS}] @ {wheel.as_uri()}"]
    subprocess.run(command, check=True)
    return python


def _fail(reason: str) -> int:
    sys.stderr.write(f"{reason}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
