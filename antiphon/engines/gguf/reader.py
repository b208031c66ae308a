"""Read the header of a GGUF file: metadata and the tensor table, never the weights.

Everything is checked against the file's size, because llama.cpp may abort the process on an
inconsistent file. Format: ggml's docs/gguf.md.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import SetupError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

STRING, ARRAY = 8, 9
#: Value type of the specification → struct format of one little-endian value.
SCALARS: Mapping[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")

#: Tensor type → (values in a block, bytes of a block). Other types are not checked: llama.cpp
#: rejects unknown types with an error.
BLOCKS: Mapping[int, tuple[int, int]] = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 36),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
}


class Tensor(Struct, frozen=True):
    """One row of the tensor table.

    ``start``: offset of the weights in the file, in bytes. ``length``: length of the weights in
    bytes; 0 for types that are not in ``BLOCKS``. ``shape``: the first number is the row length.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    start: int
    length: int


class GgufHeader(Struct, frozen=True):
    """The content of a GGUF file before its weights.

    ``metadata``: key → bool, int, float, str or a list of these. ``metadata_end``: offset in the
    file, in bytes, where the metadata ends. ``vocabulary_digest``: SHA-256 (hex) over every
    ``tokenizer.*`` key and value as stored.
    """

    metadata: Mapping[str, Any]
    metadata_end: int
    tensors: tuple[Tensor, ...]
    vocabulary_digest: str

    @property
    def alignment(self) -> int:
        """Tensor alignment in bytes."""
        return int(self.metadata.get("general.alignment", DEFAULT_ALIGNMENT))

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def architecture_value(self, key: str) -> Any:
        """Return the metadata value of ``<architecture>.<key>``, or None if there is no such
        key."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_gguf(path: Path) -> GgufHeader:
    """Read the header of the GGUF file at ``path``.

    Raises ``SetupError`` when the file is missing, is no GGUF file, or is truncated or damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _HeaderReader(view).header()
    except FileNotFoundError:
        raise SetupError(f"There is no model file at {path}.") from None
    except OSError as error:
        raise SetupError(f"The model file {path} cannot be read: {error.strerror}.") from None
    except _DamagedFile as error:
        raise SetupError(f"{path} is not a usable GGUF file: {error}.") from None
    except ValueError:  # mmap refuses an empty file
        raise SetupError(f"{path} is not a usable GGUF file: it is empty.") from None


class _DamagedFile(Exception):
    """Raised if the file is damaged. The message is a clause about the file, such as "it is
    empty"."""


_CUT_OFF = "it ends in the middle of its metadata, the download may be incomplete"


class _HeaderReader:
    """Reads the header of one file from its start, value by value. Never reads beyond the end of
    the file."""

    def __init__(self, view: mmap.mmap) -> None:
        self.view = view
        self.size = len(view)
        self.position = 0

    def header(self) -> GgufHeader:
        if self.take(4) != MAGIC:
            raise _DamagedFile("it does not begin with the letters GGUF")
        version = self.number(U32)
        if version not in VERSIONS:
            raise _DamagedFile(f"it has format version {version}; supported are 2 and 3")
        count, pairs = self.number(U64), self.number(U64)
        metadata: dict[str, Any] = {}
        digest = hashlib.sha256()
        for _ in range(pairs):
            start = self.position
            key = self.text()
            metadata[key] = self.value(self.number(U32))
            if key.startswith("tokenizer."):
                digest.update(self.view[start : self.position])
        metadata_end = self.position
        rows = [self.row() for _ in range(count)]
        tensors = self.locate_tensors(rows, metadata.get("general.alignment", DEFAULT_ALIGNMENT))
        return GgufHeader(metadata, metadata_end, tensors, digest.hexdigest())

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > self.size:
            raise _DamagedFile(_CUT_OFF)
        taken = self.view[self.position : end]
        self.position = end
        return taken

    def number(self, form: struct.Struct) -> Any:
        return form.unpack(self.take(form.size))[0]

    def text(self) -> str:
        return self.take(self.number(U64)).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY and depth < 2:
            return self.array(depth)
        if kind not in SCALARS:
            raise _DamagedFile(f"it has a value of the unknown type {kind}")
        return self.number(SCALARS[kind])

    def array(self, depth: int) -> list[Any]:
        kind, count = self.number(U32), self.number(U64)
        if count > self.size:
            raise _DamagedFile(_CUT_OFF)
        if kind == STRING:
            return self.texts(count)
        if kind in SCALARS:
            form = SCALARS[kind]
            packed = self.take(form.size * count)
            return list(struct.unpack(f"<{count}{form.format[-1]}", packed))
        return [self.value(kind, depth + 1) for _ in range(count)]

    def texts(self, count: int) -> list[str]:
        """Read ``count`` strings. For speed, the loop calls no other method of this class, because
        a vocabulary has up to 260,000 strings."""
        view, at, size = self.view, self.position, self.size
        strings = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + int.from_bytes(view[at:start], "little")
                if at > size:
                    break
                strings.append(view[start:at].decode("utf-8", "replace"))
        except OverflowError:
            at = size + 1
        if len(strings) < count:
            raise _DamagedFile(_CUT_OFF)
        self.position = at
        return strings

    def row(self) -> Tensor:
        """Read a row of the tensor table. The ``start`` of the result is an offset from the start
        of the first tensor."""
        name, dimensions = self.text(), self.number(U32)
        if dimensions > MAX_DIMENSIONS:
            raise _DamagedFile(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self.number(U64) for _ in range(dimensions))
        kind, start = self.number(U32), self.number(U64)
        in_block, block = BLOCKS.get(kind, (1, 0))
        return Tensor(name, shape, kind, start, math.prod(shape) // in_block * block)

    def locate_tensors(self, rows: list[Tensor], alignment: Any) -> tuple[Tensor, ...]:
        """Return the rows of the tensor table with each ``start`` counted from the start of the
        file. In ``rows``, each ``start`` is counted from the start of the first tensor. Raises
        ``_DamagedFile`` if a tensor ends after the end of the file."""
        if not isinstance(alignment, int) or alignment <= 0:
            raise _DamagedFile(f"its alignment is {alignment!r}")
        first = (self.position + alignment - 1) // alignment * alignment
        for row in rows:
            missing = first + row.start + row.length - self.size
            if missing > 0:
                raise _DamagedFile(
                    f"tensor {row.name!r} ends {missing} bytes after the end of the file,"
                    " the download may be incomplete"
                )
        return tuple(msgspec.structs.replace(row, start=first + row.start) for row in rows)
