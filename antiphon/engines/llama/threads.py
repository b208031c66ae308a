"""Measure how many CPU threads a model needs. No formula knows this number, because it depends on
the memory and the caches of the machine, and on what else runs there.

llama.cpp cannot change the number of threads of a running server. So before it loads the model, its
process multiplies matrices of the model's types and sizes, with several numbers of threads. For
this it calls ggml directly, which is the part of llama.cpp that computes.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.engines.gguf.reader import GgufHeader

#: Environment of llama.cpp's process. By default, a thread that waits for the others keeps its core
#: for milliseconds: if other processes need a core, a token then takes up to twenty times as long.
#: With this number of rounds, which take about a microsecond, it gives its core away.
WAIT_POLICY: Mapping[str, str] = {"GOMP_SPINCOUNT": "300"}

#: The matrices that are multiplied have at most this number of bytes, and this number of them.
_MAX_BYTES, _MAX_MATRICES = 32 << 20, 512
#: Matrices with fewer values are not worth a second thread.
_MIN_VALUES = 1 << 20
#: Seconds that a measurement takes, if the machine is not too busy.
LIMIT_S = 0.2
#: More threads must save this part of the time. Otherwise they only cost processor time.
_WORTH = 0.05
_F32 = 0
#: The matrices of a graph have about this number of bytes. A smaller graph would be computed before
#: all threads have started, and a larger one would be interrupted more often.
_GRAPH_BYTES = 4 << 20
#: Bytes for ggml's descriptions of a matrix, its vectors and its results.
_SLACK_BYTES = 4096


class Matrix(Struct, frozen=True):
    """A matrix of the model. ``type``: ggml's number of its type."""

    type: int
    columns: int
    rows: int


def model_matrices(head: GgufHeader) -> tuple[Matrix, ...]:
    """Return the matrices by which a token is multiplied in the first layers of a model."""
    used_experts = int(head.architecture_value("expert_used_count") or 1)
    found: list[Matrix] = []
    left = _MAX_BYTES
    for tensor in head.tensors:
        if not tensor.name.startswith("blk.") or len(tensor.shape) < 2 or not tensor.length:
            continue
        columns, rows, *experts = tensor.shape
        count = used_experts if experts else 1
        size = tensor.length * count // (experts[0] if experts else 1)
        if size > left or len(found) + count > _MAX_MATRICES:
            break
        left -= size
        found += [Matrix(tensor.type, columns, rows)] * count
    return tuple(found)


def counts_to_try(cpus: int) -> list[int]:
    """Return numbers of threads, from one to the number of processors."""
    return sorted({1, *(max(1, cpus * part // 4) for part in (1, 2, 3, 4)), max(1, cpus - 1)})


def choose(seconds: Mapping[int, float]) -> int:
    """Return the number of threads to use. ``seconds``: number of threads → the time of a token."""
    best = min(seconds.values())
    return min(count for count, each in seconds.items() if each * (1 - _WORTH) <= best)


def measure(matrices: Iterable[Matrix], cpus: int) -> int | None:
    """Return the number of threads that computes fastest. Returns None if ggml cannot be called."""
    counts, chosen = counts_to_try(cpus), tuple(matrices)
    if len(counts) == 1 or sum(each.columns * each.rows for each in chosen) < _MIN_VALUES:
        return 1
    try:
        ggml = _Ggml(chosen)
    except (AttributeError, OSError):  # this build of llama.cpp does not export ggml
        return None
    try:
        return choose(time_steps(len(ggml.graphs), counts, ggml.run, time.perf_counter))
    finally:
        ggml.close()


def time_steps(
    steps: int,
    counts: Sequence[int],
    run: Callable[[int, int], None],
    clock: Callable[[], float],
) -> dict[int, float]:
    """Return the time of all steps with each number of threads. ``run``: runs a step with a number
    of threads.

    Each step runs several times, and its shortest time counts. A step is much shorter than the time
    for which another process gets a core, so the work of other processes hardly counts.
    """
    shortest: dict[tuple[int, int], float] = {}
    end = clock() + LIMIT_S
    while not shortest or clock() < end:
        for step, count in itertools.product(range(steps), counts):
            start = clock()
            run(step, count)
            took = clock() - start
            shortest[step, count] = min(took, shortest.get((step, count), took))
    return {count: sum(shortest[step, count] for step in range(steps)) for count in counts}


class _InitParams(ctypes.Structure):
    """ggml's ``ggml_init_params``."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class _Ggml:
    """Graphs of ggml that multiply matrices with vectors. Small matrices share a graph. Raises
    ``OSError`` or ``AttributeError`` if ggml's functions cannot be called."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        import xllamacpp.xllamacpp

        library: Any = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
        self._library = library
        pointer, number, size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t
        for name, result, arguments in (
            ("ggml_init", pointer, [_InitParams]),
            ("ggml_row_size", size, [ctypes.c_int, number]),
            ("ggml_graph_overhead", size, []),
            ("ggml_new_tensor_2d", pointer, [pointer, ctypes.c_int, number, number]),
            ("ggml_set_zero", pointer, [pointer]),
            ("ggml_mul_mat", pointer, [pointer, pointer, pointer]),
            ("ggml_rms_norm", pointer, [pointer, pointer, ctypes.c_float]),
            ("ggml_new_graph", pointer, [pointer]),
            ("ggml_build_forward_expand", None, [pointer, pointer]),
            ("ggml_backend_cpu_init", pointer, []),
            ("ggml_backend_cpu_set_n_threads", None, [pointer, ctypes.c_int]),
            ("ggml_backend_graph_compute", ctypes.c_int, [pointer, pointer]),
            ("ggml_backend_free", None, [pointer]),
            ("ggml_free", None, [pointer]),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        sizes = [each.rows * library.ggml_row_size(each.type, each.columns) for each in matrices]
        memory = sum(sizes) + sum(
            8 * (each.columns + each.rows) + library.ggml_graph_overhead() + _SLACK_BYTES
            for each in matrices
        )
        self._context = library.ggml_init(_InitParams(memory, None, False))
        self.graphs: list[int] = []
        left = 0
        for matrix, length in zip(matrices, sizes, strict=True):
            if left <= 0:
                self.graphs.append(library.ggml_new_graph(self._context))
                left = _GRAPH_BYTES
            library.ggml_build_forward_expand(self.graphs[-1], self._product(matrix))
            left -= length
        self._backend = library.ggml_backend_cpu_init()

    def _product(self, matrix: Matrix) -> int:
        """Return a node of a graph that multiplies the matrix with a vector."""
        library, context = self._library, self._context
        weights = library.ggml_new_tensor_2d(context, matrix.type, matrix.columns, matrix.rows)
        vector = library.ggml_new_tensor_2d(context, _F32, matrix.columns, 1)
        # Memory that was never written to would all be one page of zeros.
        library.ggml_set_zero(weights)
        library.ggml_set_zero(vector)
        norm = library.ggml_rms_norm(context, vector, 1e-5)
        product: int = library.ggml_mul_mat(context, weights, norm)
        return product

    def run(self, index: int, threads: int) -> None:
        """Compute one of the graphs."""
        self._library.ggml_backend_cpu_set_n_threads(self._backend, threads)
        self._library.ggml_backend_graph_compute(self._backend, self.graphs[index])

    def close(self) -> None:
        self._library.ggml_backend_free(self._backend)
        self._library.ggml_free(self._context)
