"""Open models that call tools well, by the memory that they need.

The table has one model for each size of machine. Its sources are repositories at Hugging Face; none
of these models is downloaded unless a user asks for it.
"""

from __future__ import annotations

from msgspec import Struct

from antiphon.support.gpus import Gpu
from antiphon.support.machine import available_bytes, available_cpus

_GB = 10**9
#: Share of the available main memory that a model may take, so that other programs keep some.
_SHARE = 0.8


class Suggestion(Struct, frozen=True, kw_only=True):
    """A model. ``source``: what `antiphon serve` accepts. ``size_gb``: its download.
    ``memory_gb``: what it needs with a context of some 16,000 tokens. ``cores``: number of
    processor cores that make it fast enough for a chat on a machine without a GPU."""

    name: str
    source: str
    size_gb: float
    memory_gb: float
    cores: int
    licence: str
    good_for: str


#: Smallest first.
SUGGESTIONS = (
    Suggestion(
        name="Qwen3-0.6B",
        source="Qwen/Qwen3-0.6B-GGUF:Q8_0",
        size_gb=0.6,
        memory_gb=2.5,
        cores=1,
        licence="Apache-2.0",
        good_for="single tool calls, extraction",
    ),
    Suggestion(
        name="Qwen3-1.7B",
        source="Qwen/Qwen3-1.7B-GGUF:Q8_0",
        size_gb=1.8,
        memory_gb=4.5,
        cores=2,
        licence="Apache-2.0",
        good_for="tool calls, short answers",
    ),
    Suggestion(
        name="Qwen3.5-4B",
        source="unsloth/Qwen3.5-4B-GGUF:Q4_K_M",
        size_gb=2.7,
        memory_gb=6,
        cores=4,
        licence="Apache-2.0",
        good_for="agents with tools; sees images",
    ),
    Suggestion(
        name="Qwen3-8B",
        source="Qwen/Qwen3-8B-GGUF:Q4_K_M",
        size_gb=5.0,
        memory_gb=9,
        cores=8,
        licence="Apache-2.0",
        good_for="agents with tools",
    ),
    Suggestion(
        name="gpt-oss-20b",
        source="hf:ggml-org/gpt-oss-20b-GGUF/gpt-oss-20b-mxfp4.gguf",
        size_gb=12.1,
        memory_gb=15,
        cores=8,
        licence="Apache-2.0",
        good_for="agents, code, reasoning",
    ),
    Suggestion(
        name="Qwen3-30B-A3B",
        source="Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M",
        size_gb=18.6,
        memory_gb=23,
        cores=8,
        licence="Apache-2.0",
        good_for="agents, knowledge; fast for its size",
    ),
)


class Machine(Struct, frozen=True):
    """What a model may use on a machine. ``memory``: bytes of the GPU that llama.cpp uses, or else
    a share of the available main memory. ``cores``: number of processor cores; None with a GPU."""

    memory: int
    cores: int | None


def this_machine(gpu: Gpu | None) -> Machine:
    """Return what a model may use here. ``gpu``: the GPU that llama.cpp uses; None if it computes
    on the CPU."""
    if gpu is not None and gpu.memory_bytes is not None:
        return Machine(gpu.memory_bytes, None)
    return Machine(int(available_bytes() * _SHARE), available_cpus())


def problem(suggestion: Suggestion, machine: Machine) -> str | None:
    """Return why a model does not fit a machine; None if it fits."""
    if suggestion.memory_gb * _GB > machine.memory:
        return f"needs {suggestion.memory_gb:g} GB"
    if machine.cores is not None and suggestion.cores > machine.cores:
        return f"slow below {suggestion.cores} cores"
    return None


def best_fit(machine: Machine) -> Suggestion | None:
    """Return the largest model that fits a machine, or None."""
    fitting = [each for each in SUGGESTIONS if problem(each, machine) is None]
    return fitting[-1] if fitting else None
