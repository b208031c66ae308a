"""The program of the process that runs llama.cpp: ``python -m
antiphon.engines.llama.server_program``.

It reads a ``ServerSetup`` as one line of JSON from standard input, starts llama.cpp's HTTP server
at the address in it, and writes one line to standard output: a ``ServerStart``. It ends when its
standard input is closed, so it never outlives the process that started it.

The binding of llama.cpp holds Python's GIL while it loads a model. In this process nobody waits for
the GIL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.support.machine import available_cpus, spare_cpus

from .options import Speculation
from .threads import WAIT_POLICY, Matrix, measure
from .zero_pages import release_zero_pages, writable_ranges

#: If a slot and a prompt are less similar than this, llama.cpp treats the prompt as new. The slots
#: are chosen by ``Slots``, and saved states are managed by ``KeptStates``.
SIMILARITY = 0.999
#: Value of ``n_gpu_layers`` that puts as many layers on the GPU as fit.
ALL_THAT_FIT = -1


class ServerSetup(Struct, frozen=True, kw_only=True):
    """What the process of llama.cpp needs to start.

    - ``model``, ``projector``, ``adapters``: GGUF files of the model, its image encoder, and its
      LoRA adapters.
    - ``threads``: number of CPU threads. None: the process measures with ``matrices``, which are
      some of the model's, how many threads compute a single token fastest. Several tokens at a time
      are then computed by ``batch_threads``, which are as many as there are processors.
    - ``fields``: fields of ``CommonParams``, which is llama.cpp's configuration. ``cpu_fields``:
      further ones, if no layer runs on a GPU.
    - ``pooling``: name of a value of llama.cpp's ``llama_pooling_type``; None for the file's.
    - ``host``, ``port``: where the server listens. If the port is 0, the host is the path of a
      Unix socket. ``key``: the API key that requests must contain.
    - ``states``: what precedes the name of a state's file, to make its path.
    """

    model: str
    fields: Mapping[str, int | bool]
    cpu_fields: Mapping[str, int | bool] = {}
    threads: int | None = None
    batch_threads: int | None = None
    matrices: tuple[Matrix, ...] = ()
    projector: str | None = None
    adapters: tuple[str, ...] = ()
    speculation: Speculation | None = None
    pooling: str | None = None
    host: str = ""
    port: int = 0
    key: str = ""
    states: str = ""


#: A path is sent as text.
encode_setup = msgspec.json.Encoder(enc_hook=str).encode
decode_setup = msgspec.json.Decoder(ServerSetup, dec_hook=lambda kind, value: kind(value)).decode


class ServerStart(Struct, frozen=True):
    """Whether the model is loaded. ``problem``: why not; empty if it is loaded. ``threads``: number
    of CPU threads."""

    problem: str = ""
    threads: int = 0


def create_params(setup: ServerSetup) -> Any:
    """Return llama.cpp's ``CommonParams`` for this setup, whose ``threads`` is not None."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = setup.model
    params.cpuparams.n_threads = setup.threads
    params.cpuparams_batch.n_threads = setup.batch_threads or setup.threads
    params.slot_prompt_similarity = SIMILARITY
    params.verbosity = -1
    params.warmup = params.use_jinja = False
    gpu_layers = setup.fields["n_gpu_layers"]
    uses_gpu = gpu_layers != 0 and has_gpu()
    # Fitting the layers loads the model twice, so do it only if there is a GPU.
    params.fit_params = gpu_layers == ALL_THAT_FIT and uses_gpu
    params.ui = params.endpoint_slots = False
    params.api_keys = [setup.key]
    params.hostnames, params.port = [setup.host], setup.port
    params.slot_save_path = setup.states
    params.lora_adapters = [
        _inactive_adapter(xllamacpp.CommonAdapterLoraInfo(), file) for file in setup.adapters
    ]
    if setup.projector is not None:
        params.mmproj.path = setup.projector
        params.mmproj_use_gpu = bool(gpu_layers)
    fields = setup.fields if uses_gpu else {**setup.fields, **setup.cpu_fields}
    for field, value in fields.items():
        setattr(params, field, value)
    if setup.pooling is not None:
        params.pooling_type = getattr(xllamacpp.llama_pooling_type, setup.pooling)
    if setup.speculation is not None:
        setup.speculation.apply(params)
    return params


def has_gpu() -> bool:
    """Return whether this build of llama.cpp can use a GPU of this machine."""
    import xllamacpp

    return any("GPU" in device["type"].name for device in xllamacpp.get_device_info())


def _inactive_adapter(adapter: Any, file: str) -> Any:
    """Fill in ``adapter``, which is llama.cpp's description of a LoRA adapter, and return it. Its
    scale is 0, so the adapter has no effect on requests that do not set another scale."""
    adapter.path, adapter.scale = file, 0.0
    return adapter


def main() -> None:
    """Run llama.cpp's server until standard input is closed."""
    for name, value in WAIT_POLICY.items():
        os.putenv(name, value)  # the library of threads reads it when it is loaded
    import xllamacpp

    setup = decode_setup(sys.stdin.buffer.readline())
    if setup.threads is None:
        cpus = available_cpus()
        threads = measure(setup.matrices, cpus) or spare_cpus()
        setup = replace(setup, threads=threads, batch_threads=cpus)
    params = create_params(setup)
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        _report(ServerStart("too little memory for the context, or an unsupported model"))
        os._exit(1)
    # llama.cpp's threads wait for the first request, so nothing writes to the memory now.
    release_zero_pages(writable_ranges())
    _report(ServerStart(threads=setup.threads or 0))
    sys.stdin.buffer.read()
    del server
    # Without the destructors: another thread may be computing, and the system frees the memory.
    os._exit(0)


def _report(result: ServerStart) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
