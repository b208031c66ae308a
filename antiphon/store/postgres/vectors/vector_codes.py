"""Codes of vectors in memory. A code is a short approximation of a vector. A search first compares
codes, to select candidates among many vectors.

A code has two bits for each dimension. The first bit tells whether the value is above a low bound,
the second bit whether it is above a high bound. If two vectors are far apart, many bits of their
codes differ.

Comparing two codes of 384 dimensions takes a twentieth of the time that PostgreSQL needs to read
and compare a vector. Codes are not exact, so the vectors of the candidates must be compared
afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

__all__ = ["VectorCodes", "can_use_codes"]

#: Distance of the bounds from the mean of a dimension, in standard deviations. With these bounds,
#: three levels of a normal distribution lose the least information (J. Max, Quantizing for minimum
#: distortion, 1960).
_BOUND = 0.612
_WORD_BYTES, _CHUNK_BYTES = 8, 8
#: Share of their length by which arrays grow.
_GROWTH = 0.25
#: If a search covers less than this share of all rows, it reads only these rows.
_GATHERED_SHARE = 0.6


def can_use_codes() -> bool:
    """Return whether numpy is installed and can count bits, which needs version 2 or later."""
    if find_spec("numpy") is None:
        return False
    import numpy

    return hasattr(numpy, "bitwise_count")


class VectorCodes:
    """The codes (short approximations of vectors) of the chunks of one vector store, grouped by
    file. Searches select their candidates by these codes.

    One thread may add files while other threads search, because codes never change after they are
    added. ``mean``: the mean of the chunks' vectors. The vectors must have length 1.
    """

    def __init__(self, mean: Sequence[float]) -> None:
        import numpy

        center = numpy.asarray(mean, "f4")
        spread = (max(0.0, 1 - float(center @ center)) / len(center)) ** 0.5
        self._low, self._high = center - _BOUND * spread, center + _BOUND * spread
        self._ranges: dict[int, tuple[int, int]] = {}
        self._count = 0
        #: The n-th words of all codes are next to each other, which makes searches three times as
        #: fast.
        self._words: Any = numpy.empty((_words(len(center)), 0), "<u8")
        self._chunks: Any = numpy.empty(0, "i8")

    @property
    def bounds(self) -> tuple[list[float], list[float]]:
        """The low bound and the high bound of each dimension."""
        return self._low.tolist(), self._high.tolist()

    @property
    def file_count(self) -> int:
        """The number of files whose codes were added, including files that were deleted later."""
        return len(self._ranges)

    @property
    def byte_count(self) -> int:
        """The number of bytes that the codes occupy in memory."""
        return self.size(len(self._chunks))

    def size(self, chunks: int) -> int:
        """Return the number of bytes that ``chunks`` chunks occupy in memory. Each chunk has a code
        and a chunk number."""
        return chunks * (_WORD_BYTES * len(self._words) + _CHUNK_BYTES)

    def find_missing(self, files: Iterable[int]) -> list[int]:
        """Return those of ``files`` whose codes have not been added."""
        return [file for file in files if file not in self._ranges]

    def count(self, files: Iterable[int] | None = None) -> int:
        """Return the number of chunks of these files. If ``files`` is None, return the number of
        all chunks."""
        if files is None:
            return self._count
        return sum(self._ranges[file][1] for file in files if file in self._ranges)

    def add(self, files: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Add the codes of the chunks of files. Each tuple contains the row number of a file, the
        chunk number of each of its chunks (64 bits each, big-endian), and the codes of these
        chunks, in the same order."""
        import numpy

        chunks = numpy.frombuffer(b"".join(row[1] for row in files), ">i8")
        bits = numpy.frombuffer(b"".join(row[2] for row in files), "u1")
        start, end = self._count, self._count + len(chunks)
        self._grow(end)
        if len(chunks):
            self._chunks[start:end] = chunks
            self._words[:, start:end] = _pad(bits.reshape(len(chunks), -1)).T
        for file, numbers, _ in files:
            length = len(numbers) // _CHUNK_BYTES
            self._ranges[file] = start, length
            start += length
        self._count = end

    def find_candidates(self, vector: Sequence[float], files: Sequence[int], count: int) -> Any:
        """Among the chunks of these files, find those whose codes are nearest to the code of
        ``vector``. Return their chunk numbers, in no particular order. ``count``: the maximum
        number of chunks."""
        import numpy

        ranges = [self._ranges[file] for file in files if file in self._ranges]
        starts, lengths = numpy.array(ranges, "i8").reshape(-1, 2).T
        ends = numpy.cumsum(lengths)
        rows = numpy.repeat(starts - ends + lengths, lengths) + numpy.arange(lengths.sum())
        values = numpy.asarray(vector, "f4")
        bits = numpy.packbits(numpy.concatenate([values > self._low, values > self._high]))
        query = _pad(bits[None])[0]
        # Read the arrays after the ranges, because ``add`` sets the arrays before the ranges.
        words, chunks = self._words, self._chunks
        if len(rows) < _GATHERED_SHARE * self._count:
            distances = _count_bits((column[rows] for column in words), query, len(rows))
        else:
            last = int((starts + lengths).max(initial=0))
            distances = _count_bits((column[:last] for column in words), query, last)[rows]
        if count < len(rows):
            rows = rows[numpy.argpartition(distances, count)[:count]]
        return chunks[rows].tolist()

    def _grow(self, count: int) -> None:
        import numpy

        if count <= len(self._chunks):
            return
        room = count + int(_GROWTH * self._count) - len(self._chunks)
        self._words = numpy.pad(self._words, ((0, 0), (0, room)))
        self._chunks = numpy.pad(self._chunks, (0, room))


def _count_bits(columns: Iterable[Any], query: Any, count: int) -> Any:
    """Return, for each code, how many of its bits differ from the code of the query vector. A code
    is a series of 64-bit words. ``columns``: the words of all codes: one array with the first word
    of each code, one with the second words, and so on. ``query``: the words of the query vector's
    code. ``count``: the number of codes."""
    import numpy

    distances: Any = numpy.zeros(count, "u2")
    for words, word in zip(columns, query, strict=True):
        distances += numpy.bitwise_count(words ^ word)
    return distances


def _words(dimensions: int) -> int:
    return -(-2 * dimensions // (8 * _WORD_BYTES))


def _pad(bits: Any) -> Any:
    """Convert rows of bytes into rows of 64-bit words. Each row is filled up with zeros."""
    import numpy

    padded = numpy.pad(bits, ((0, 0), (0, -bits.shape[1] % _WORD_BYTES)))
    return numpy.ascontiguousarray(padded).view("<u8")
