"""llama.cpp's own server with the default model, from the package of Antiphon's engine. It is one
of the compared servers of the Responses API, and also the upstream of the other servers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tests.real.embedded_model import smollm2

from .upstream import MODEL

#: Streams at once, and tokens of each.
PARALLEL, CONTEXT = 4, 2048


def command(parallel: int, context: int) -> Callable[[int, str, Path], list[str]]:
    """Return what makes the command line of a server. See ``Peer``."""
    # The server starts in another folder. ``python -m`` would not find the package bench there.
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {root!r}); from bench.peers.llama_server import serve"
    return lambda port, upstream, folder: [
        *(sys.executable, "-c", f"{code}; serve({port}, {parallel}, {context})")
    ]


def serve(port: int, parallel: int, context: int) -> None:
    """Serve until the process is terminated."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(smollm2())
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel, params.n_ctx = parallel, parallel * context
    # As Antiphon's engine has them.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_batch = params.n_ubatch = 256
    params.warmup = params.ui = False
    params.use_jinja = True
    params.verbosity = -1
    server = xllamacpp.Server(params)
    threading.Event().wait()
    del server
