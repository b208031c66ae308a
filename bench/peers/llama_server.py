"""llama.cpp's own server with the default model, from the package of Antiphon's engine. It is one
of the compared servers of the Responses API, and also the upstream of the other servers.
"""

from __future__ import annotations

import threading

from antiphon.testing.embedded_model import smollm2

from .upstream import MODEL

__all__ = ["CONTEXT", "PARALLEL", "serve"]

#: Streams at once, and tokens of each.
PARALLEL, CONTEXT = 4, 2048


def serve(port: int) -> None:
    """Serve until the process is terminated."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(smollm2())
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel, params.n_ctx = PARALLEL, PARALLEL * CONTEXT
    # As Antiphon's engine has them.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_batch = params.n_ubatch = 256
    params.warmup = params.ui = False
    params.use_jinja = True
    params.verbosity = -1
    server = xllamacpp.Server(params)
    threading.Event().wait()
    del server
