"""How many CPU threads llama.cpp gets."""

from __future__ import annotations

from collections.abc import Container, Mapping

import pytest

from antiphon.engines.gguf.reader import GgufHeader, Tensor, read_gguf
from antiphon.engines.llama import threads
from antiphon.engines.llama.threads import (
    LIMIT_S,
    Matrix,
    choose,
    counts_to_try,
    measure,
    model_matrices,
    time_steps,
)
from tests.tiny_models.tiny_tools import GGUF

Q8_0 = 8


def header(*tensors: Tensor, **metadata: object) -> GgufHeader:
    return GgufHeader({"general.architecture": "x", **metadata}, 0, tensors, "")


def test_few_numbers_are_tried() -> None:
    assert counts_to_try(1) == [1]
    assert counts_to_try(2) == [1, 2]
    assert counts_to_try(8) == [1, 2, 4, 6, 7, 8]
    assert counts_to_try(64) == [1, 16, 32, 48, 63, 64]


@pytest.mark.parametrize(
    ("seconds", "count"),
    [
        ({1: 0.010, 2: 0.006}, 2),  # a quiet machine
        ({1: 0.010, 2: 0.0098}, 1),  # the memory is the limit: more threads only cost
        ({1: 0.010, 2: 0.090}, 1),  # other processes use the cores
        ({1: 0.010, 4: 0.003, 7: 0.0021, 8: 0.0050}, 7),  # something uses one core
    ],
)
def test_the_fewest_of_the_fastest_are_chosen(seconds: Mapping[int, float], count: int) -> None:
    assert choose(seconds) == count


class Machine:
    """Runs steps on a clock of its own. ``seconds``: number of threads → duration of a step.
    ``pauses``: which calls another process interrupts."""

    def __init__(self, seconds: Mapping[int, float], pauses: Container[int] = ()) -> None:
        self.now = 0.0
        self.calls: list[tuple[int, int]] = []
        self._seconds, self._pauses = seconds, pauses

    def run(self, step: int, count: int) -> None:
        self.now += self._seconds[count] + 0.05 * (len(self.calls) in self._pauses)
        self.calls.append((step, count))

    def measure(self, steps: int) -> dict[int, float]:
        return time_steps(steps, [*self._seconds], self.run, lambda: self.now)


def test_interruptions_do_not_change_the_choice() -> None:
    machine = Machine({1: 0.004, 2: 0.003}, pauses=range(1, 1000, 5))
    found = machine.measure(3)
    assert found == pytest.approx({1: 0.012, 2: 0.009})
    assert machine.calls[:4] == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_a_measurement_is_short() -> None:
    quiet = Machine({1: 0.0002, 2: 0.0001})
    quiet.measure(30)
    assert quiet.now == pytest.approx(LIMIT_S, rel=0.1)
    busy = Machine({1: 1.0, 2: 2.0})
    assert busy.measure(2) == {1: 2.0, 2: 4.0}
    assert len(busy.calls) == 4


def test_matrices_are_those_of_a_token() -> None:
    found = model_matrices(
        header(
            Tensor("token_embd.weight", (64, 1000), Q8_0, 0, 68_000),  # only one row is read
            Tensor("blk.0.attn_norm.weight", (64,), 0, 0, 256),
            Tensor("blk.0.attn_q.weight", (64, 32), Q8_0, 0, 2176),
            Tensor("blk.0.ffn_up_exps.weight", (64, 128, 8), Q8_0, 0, 69_632),
            **{"x.expert_used_count": 2},
        )
    )
    assert found == (Matrix(Q8_0, 64, 32), Matrix(Q8_0, 64, 128), Matrix(Q8_0, 64, 128))


def test_a_large_model_is_measured_by_its_first_layers() -> None:
    rows = 4096 * 1088
    layers = [Tensor(f"blk.{n}.q.weight", (4096, 1024), Q8_0, 0, rows) for n in range(80)]
    assert 0 < len(model_matrices(header(*layers))) < 10


def test_llama_computes_the_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LIMIT_S", 0.0)
    assert measure([Matrix(Q8_0, 256, 4096)] * 2, cpus=2) in (1, 2)


def test_small_models_and_single_processors_need_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(threads, "_Ggml")
    assert measure([Matrix(Q8_0, 4096, 4096)], cpus=1) == 1
    assert measure(model_matrices(read_gguf(GGUF)), cpus=8) == 1


def test_a_build_without_ggmls_functions_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: str) -> object:
        raise OSError("no such library")

    monkeypatch.setattr("ctypes.CDLL", load)
    assert measure([Matrix(Q8_0, 4096, 4096)], cpus=2) is None
