"""States (KV caches) in files on disk, which outlive this process. They are encrypted if there is a
secret."""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import os
import platform
import secrets
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

_SUFFIX = ".state"
#: The first bytes of a file: plain, or encrypted.
_PLAIN, _SEALED = b"antiphon state 3\n", b"antiphon state 3 sealed\n"
#: Bytes of the checksum of each part of a plain file.
_CHECKSUM = 4
_CHUNK = 4 << 20
_DIGESTS = "digests.json"


class StoredState(Struct, frozen=True, kw_only=True):
    """What a file says about its state. ``scope``, ``adapter``: its ``StateGroup``. ``ids``: packed
    as 64-bit numbers. ``session``, ``tenant``, ``owner``: whose state it is (``StateOwner``).
    ``size``: its bytes."""

    scope: str | None
    adapter: str | None
    ids: bytes
    session: str | None
    tenant: str
    owner: str | None
    size: int

    @staticmethod
    def pack(ids: Sequence[int]) -> bytes:
        """Return packed ids."""
        return array("q", ids).tobytes()

    def unpack(self) -> tuple[int, ...]:
        """Return the ids."""
        return tuple(array("q", self.ids))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredState).decode


class DiskStates:
    """The files of one model's states in ``folder``. All methods block. ``max_bytes``: the budget,
    which the caller enforces. ``secret``: encrypts the files; None for plain files.
    ``max_age_s``: seconds after its last use at which a state expires; None for never."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        secret: bytes | None = None,
        max_age_s: float | None = None,
    ) -> None:
        self.max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._folder = folder
        self._key = None if secret is None else hashlib.sha256(b"kept states" + secret).digest()

    def load(self) -> list[tuple[Path, StoredState]]:
        """Return all usable states, oldest first. Delete other files, and the folders of earlier
        versions of the model."""
        self._folder.mkdir(parents=True, exist_ok=True)
        os.utime(self._folder)
        for other in self._folder.parent.iterdir():
            if other != self._folder and other.is_dir():
                for path in other.glob(f"*{_SUFFIX}*"):
                    path.unlink(missing_ok=True)
                with suppress(OSError):
                    other.rmdir()
        found = []
        for path in sorted(self._folder.iterdir(), key=_changed_at):
            is_whole = path.suffix == _SUFFIX
            if is_whole and not self.is_expired(path) and (state := self.describe(path)):
                found.append((path, state))
            else:
                path.unlink(missing_ok=True)
        return found

    def is_expired(self, path: Path) -> bool:
        """Return whether the state in a file has not been used for too long."""
        if self._max_age_s is None:
            return False
        with suppress(OSError):
            # The folder was changed just now, by ``load`` or ``write``.
            now = self._folder.stat().st_mtime
            return path.stat().st_mtime + self._max_age_s < now
        return True

    def describe(self, path: Path) -> StoredState | None:
        """Return what a file says about its state; None if it cannot be read."""
        try:
            with path.open("rb") as file:
                return _decode(next(self._read(file)))
        except (OSError, ValueError, StopIteration):
            return None

    def write(self, state: StoredState, source: Path) -> Path:
        """Write a state to a new file and return its path. ``source``: the state. Raises
        ``OSError``."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / (secrets.token_hex(16) + _SUFFIX)
        unfinished = path.with_suffix(f"{_SUFFIX}.part")
        try:
            with source.open("rb") as original, _open_private(unfinished) as file:
                chunks = iter(lambda: original.read(_CHUNK), b"")
                self._write(file, itertools.chain((_encode(state),), chunks))
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        return path

    def read(self, path: Path, target: Path) -> None:
        """Copy the state in a file to ``target``. Raises ``OSError``. Raises ``ValueError`` if the
        file is damaged."""
        with path.open("rb") as file, target.open("wb") as copy:
            parts = self._read(file)
            size = _decode(next(parts)).size
            for part in parts:
                copy.write(part)
                size -= len(part)
        if size:
            raise ValueError("the file is incomplete")
        os.utime(path)

    def _write(self, file: BinaryIO, parts: Iterable[bytes]) -> None:
        prefix = os.urandom(8)
        file.write(_PLAIN if self._key is None else _SEALED)
        file.write(prefix)
        for number, part in enumerate(parts):
            sealed = self._seal(part, prefix + number.to_bytes(4, "big"))
            file.write(len(sealed).to_bytes(4, "big"))
            file.write(sealed)

    def _read(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the parts of a file: the encoded ``StoredState``, then the state. Raises
        ``ValueError``."""
        magic = _PLAIN if self._key is None else _SEALED
        if file.read(len(magic)) != magic:
            raise ValueError("not a file of a state, or another encryption")
        prefix, number = file.read(8), 0
        while length := int.from_bytes(file.read(4), "big"):
            yield self._unseal(file.read(length), prefix + number.to_bytes(4, "big"))
            number += 1

    def _seal(self, part: bytes, nonce: bytes) -> bytes:
        if self._key is None:
            return part + zlib.crc32(part).to_bytes(_CHECKSUM, "big")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._key).encrypt(nonce, part, None)

    def _unseal(self, sealed: bytes, nonce: bytes) -> bytes:
        if self._key is None:
            part, checksum = sealed[:-_CHECKSUM], sealed[-_CHECKSUM:]
            if zlib.crc32(part).to_bytes(_CHECKSUM, "big") != checksum:
                raise ValueError("the file is damaged")
            return part
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            return AESGCM(self._key).decrypt(nonce, sealed, None)
        except InvalidTag:
            raise ValueError("the file has another key, or is damaged") from None


def model_identity(files: Sequence[Path], options: Mapping[str, object], cache: Path) -> str:
    """Return a digest of all that a state depends on: the contents of the model's files, the
    version of llama.cpp, and ``options``. Blocks: it reads the files.

    ``cache``: a folder in which the digests of files are stored, so that a file is read again only
    after a change.
    """
    cache.mkdir(parents=True, exist_ok=True)
    known: dict[str, str] = {}
    with suppress(OSError, ValueError):
        known = msgspec.json.decode((cache / _DIGESTS).read_bytes(), type=dict[str, str])
    digests = {}
    for file in files:
        stat = file.stat()
        name = f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
        if name not in known:
            with file.open("rb") as opened:
                known[name] = hashlib.file_digest(opened, "sha256").hexdigest()
        digests[name] = known[name]
    (cache / _DIGESTS).write_bytes(msgspec.json.encode(digests))
    version = importlib.metadata.version("xllamacpp")
    parts = [*digests.values(), version, platform.machine(), sorted(options.items())]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]


def _changed_at(path: Path) -> float:
    with suppress(OSError):  # another server that uses the folder may have deleted the file
        return path.stat().st_mtime
    return 0.0


def _open_private(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def state_owners(root: Path, secret: bytes | None) -> set[tuple[str, str | None]]:
    """Return the tenants and owners of the files in the folders of all models below ``root``.
    Blocks."""
    found = (state for _, state in _stored_states(root, secret) if state is not None)
    return {(state.tenant, state.owner) for state in found}


def deletion_mark(root: Path, tenant: str, owner: str | None) -> Path:
    """Return the path of an empty file that exists while states of an owner are to be deleted."""
    return root / (hashlib.sha256(msgspec.json.encode([tenant, owner])).hexdigest() + ".deleted")


def delete_states(
    root: Path, secret: bytes | None, is_meant: Callable[[StoredState], bool]
) -> None:
    """Delete the files for which ``is_meant`` returns True, and those that cannot be read, in the
    folders of all models below ``root``. Blocks."""
    for path, state in _stored_states(root, secret):
        if state is None or is_meant(state):
            path.unlink(missing_ok=True)


def _stored_states(root: Path, secret: bytes | None) -> Iterator[tuple[Path, StoredState | None]]:
    for folder in root.glob("*/*/"):
        disk = DiskStates(folder, 0, secret)
        for path in folder.glob(f"*{_SUFFIX}"):
            yield path, disk.describe(path)
