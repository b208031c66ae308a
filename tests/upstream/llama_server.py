"""``python llama_server.py MODEL [PORT [PROJECTOR]]``: llama.cpp's own HTTP server with a model,
with a picture encoder perhaps, until standard input ends. Prints its address."""

from __future__ import annotations

import socket
import sys

import xllamacpp


def serve(model: str, port: int = 0, projector: str = "") -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a crash
        probe.bind(("127.0.0.1", port))
        port = probe.getsockname()[1]
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_parallel, params.n_ctx = 4, 4 * 1024
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity, params.warmup, params.use_jinja = -1, False, True
    if projector:
        params.mmproj.path, params.mmproj_use_gpu = projector, False
    server = xllamacpp.Server(params)
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    del server


if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:3]), *sys.argv[3:])
