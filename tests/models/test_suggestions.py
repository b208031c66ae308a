"""Suggested models: one for each size of machine."""

from __future__ import annotations

import pytest

from antiphon.models.suggestions import SUGGESTIONS, Machine, best_fit, problem, this_machine
from antiphon.support.gpus import Gpu

GB = 10**9


@pytest.mark.parametrize(
    ("memory_gb", "cores", "name"),
    [
        (1, 8, None),
        (3, 2, "Qwen3-0.6B"),
        (64, 2, "Qwen3-1.7B"),
        (8, 8, "Qwen3.5-4B"),
        (16, 8, "gpt-oss-20b"),
        (24, None, "Qwen3-30B-A3B"),
        (6, None, "Qwen3.5-4B"),
    ],
)
def test_largest_model_that_fits(memory_gb: int, cores: int | None, name: str | None) -> None:
    best = best_fit(Machine(memory_gb * GB, cores))
    assert (best and best.name) == name


def test_rows_grow_and_need_more_than_their_files() -> None:
    needs = [each.memory_gb for each in SUGGESTIONS]
    assert needs == sorted(needs)
    assert all(each.memory_gb > each.size_gb for each in SUGGESTIONS)
    assert problem(SUGGESTIONS[-1], Machine(GB, 64)) == "needs 23 GB"
    assert problem(SUGGESTIONS[-1], Machine(64 * GB, 2)) == "slow below 8 cores"


def test_memory_of_a_gpu_counts_if_it_is_known() -> None:
    card = Gpu(name="card", build="cu132", memory_bytes=24 * GB)
    assert this_machine(card) == Machine(24 * GB, None)
    assert this_machine(Gpu(name="card", build="vulkan")).cores is not None
