"""Rewrite a GGUF file with its Q4_1 weights converted to Q8_0.

llama.cpp has fast kernels only for Q8_0, not for Q4_1. With Q8_0, prompts are processed about 1.6
times as fast, and the file takes about 1.5 times the memory. The converted weights differ from the
original weights only by the rounding of Q8_0. Tensors of other types stay unchanged.

The Python binding of llama.cpp has no ``llama_model_quantize``, the function that converts a whole
file. But it exports the functions that convert one row of numbers, so this module calls them.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import struct
from pathlib import Path
from typing import IO

from antiphon.engines.llama.tokenizer import library_path

from .reader import BLOCKS, GgufHeader, Tensor, read_gguf

Q4_1, Q8_0 = 3, 8


def to_q8_0(source: Path, target: Path) -> None:
    """Convert the Q4_1 weights of the file ``source`` to Q8_0, and write the result to ``target``
    atomically. The conversion takes half a second for 100 MB.

    Raises ``SetupError`` when the Python binding of llama.cpp is not installed or ``source`` is not
    usable.
    """
    header = read_gguf(source)
    library = ctypes.CDLL(library_path())
    partial = target.with_name(target.name + ".incomplete")
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        with partial.open("wb") as out:
            out.write(view[: header.metadata_end])
            out.write(_tensor_table(header))
            for tensor in header.tensors:
                _pad(out, header.alignment)
                data = view[tensor.start : tensor.start + tensor.length]
                out.write(_convert(library, tensor, data))
            _pad(out, header.alignment)
    os.replace(partial, target)


def _tensor_table(header: GgufHeader) -> bytes:
    rows, offset = [], 0
    for tensor in header.tensors:
        name = tensor.name.encode()
        rows.append(
            struct.pack(f"<Q{len(name)}sI", len(name), name, len(tensor.shape))
            + struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
            + struct.pack("<IQ", _target_type(tensor), offset)
        )
        offset += math.ceil(_target_length(tensor) / header.alignment) * header.alignment
    return b"".join(rows)


def _target_type(tensor: Tensor) -> int:
    return Q8_0 if tensor.type == Q4_1 else tensor.type


def _target_length(tensor: Tensor) -> int:
    in_block, block = BLOCKS[_target_type(tensor)]
    return math.prod(tensor.shape) // in_block * block


def _convert(library: ctypes.CDLL, tensor: Tensor, stored: bytes) -> bytes:
    if tensor.type != Q4_1:
        return stored
    count, in_row = math.prod(tensor.shape), tensor.shape[0]
    values = (ctypes.c_float * count)()
    library.dequantize_row_q4_1(stored, values, ctypes.c_int64(count))
    packed = ctypes.create_string_buffer(_target_length(tensor))
    rows = ctypes.c_int64(count // in_row)
    library.quantize_q8_0(values, packed, rows, ctypes.c_int64(in_row), None)
    return packed.raw


def _pad(out: IO[bytes], alignment: int) -> None:
    out.write(bytes(-out.tell() % alignment))
