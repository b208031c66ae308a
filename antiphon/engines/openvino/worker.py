"""The worker process of the OpenVINO engine. It runs one pipeline for all generations together.

A step of the pipeline generates one token for each running request. OpenVINO holds Python's global
lock during a whole step, so the pipeline has its own process. The worker reads requests from
standard input and writes tokens to standard output. It exits when its input ends. The parent
process tokenizes text and checks stop conditions.

Usage: ``python -m antiphon.engines.openvino.worker SETUP``. SETUP is a ``WorkerSetup`` as JSON.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from typing import IO, Any

import msgspec
from msgspec import Struct

from .protocol import (
    LENGTH_PREFIX,
    CancelRequest,
    GenerateRequest,
    GenerationEnd,
    GenerationFailed,
    LoadResult,
    SampledTokensMessage,
    ToParent,
    ToWorker,
    pack,
    payload_size,
    unpack_for_worker,
)


class WorkerSetup(Struct, frozen=True):
    """The configuration of the OpenVINO pipeline in the worker process.

    ``model``: path of the model. ``device``: OpenVINO's name of the device, such as ``CPU``.
    ``scheduler``: attributes of ``SchedulerConfig``. ``properties``: properties of the device's
    plug-in.
    """

    model: str
    device: str
    scheduler: dict[str, Any]
    properties: dict[str, Any]


class _Pipeline:
    def __init__(self, setup: WorkerSetup) -> None:
        # Only OpenVINO's model converter needs telemetry. Prevent that it is imported.
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
        import openvino_genai

        self._library = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        for name, value in setup.scheduler.items():
            setattr(scheduler, name, value)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            setup.model, scheduler, setup.device, setup.properties
        )
        self._running: dict[int, Any] = {}

    @property
    def idle(self) -> bool:
        """Whether the pipeline has no request. If this is true, the worker need not execute a step.
        A cancelled request stays in the pipeline until the next step removes the request."""
        return not self._running and not self._pipeline.has_non_finished_requests()

    def handle(self, message: ToWorker) -> list[ToParent]:
        if isinstance(message, CancelRequest):
            if (handle := self._running.pop(message.id, None)) is not None:
                handle.cancel()
            return []
        try:
            self._running[message.id] = self._add_request(message)
        except Exception as error:
            return [
                GenerationFailed(message.id, _error_summary(error), message.grammar is not None)
            ]
        return []

    def _add_request(self, request: GenerateRequest) -> Any:
        import numpy
        import openvino

        config = self._library.GenerationConfig()
        for name, value in request.config.items():
            setattr(config, name, value)
        if request.grammar is not None:
            structured = self._library.StructuredOutputConfig()
            structured.grammar = request.grammar
            config.structured_output_config = structured
        config.validate()
        ids = openvino.Tensor(numpy.array([request.ids], dtype=numpy.int64))
        return self._pipeline.add_request(request.id, ids, config)

    def step(self) -> list[ToParent]:
        """Generate one token for each running request, and return the messages for the parent
        process. Raises the exceptions of OpenVINO."""
        if self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        messages: list[ToParent] = []
        for id, handle in list(self._running.items()):
            messages += self._read(id, handle)
        return messages

    def _read(self, id: int, handle: Any) -> list[ToParent]:
        messages: list[ToParent] = []
        reason = ""
        while handle.can_read():
            for output in handle.read().values():
                messages.append(
                    SampledTokensMessage(id, output.generated_ids, output.generated_log_probs)
                )
                reason = output.finish_reason.name
        if handle.get_status().name == "RUNNING":
            return messages
        del self._running[id]
        known = {"STOP": "stop", "LENGTH": "length"}
        return [*messages, GenerationEnd(id, known.get(reason) or handle.get_status().name)]


def _error_summary(error: BaseException) -> str:
    """Return the message of an OpenVINO error without the source locations that it contains."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    return (messages or lines or [type(error).__name__])[0]


def _read_requests(source: IO[bytes], requests: queue.SimpleQueue[ToWorker | None]) -> None:
    while len(head := source.read(LENGTH_PREFIX.size)) == LENGTH_PREFIX.size:
        for message in unpack_for_worker(source.read(payload_size(head))):
            requests.put(message)
    requests.put(None)


def _serve(
    pipeline: _Pipeline, requests: queue.SimpleQueue[ToWorker | None], out: IO[bytes]
) -> None:
    while True:
        messages: list[ToParent] = []
        while pipeline.idle or not requests.empty():
            message = requests.get()
            if message is None:
                return
            messages += pipeline.handle(message)
            if messages or isinstance(message, CancelRequest):
                break
        messages += pipeline.step()
        if messages:
            out.write(pack(messages))
            out.flush()


def main() -> None:
    """Run the worker. If the model cannot be loaded, send the reason to the parent process and
    return."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep the libraries' output out of the messages
    try:
        pipeline = _Pipeline(msgspec.json.decode(sys.argv[1], type=WorkerSetup))
    except Exception as error:
        out.write(pack([LoadResult(_error_summary(error))]))
        out.flush()
        return
    out.write(pack([LoadResult()]))
    out.flush()
    requests: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
    _serve(pipeline, requests, out)
    os._exit(0)  # do not wait for running requests; there is no state to save


if __name__ == "__main__":
    main()
