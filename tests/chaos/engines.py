"""A server whose llama.cpp process is killed in the middle of answers, as by the kernel when memory
runs out. The process is started again, the answers continue, and those of another model do not
notice."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from .clients import Violation
from .place import Place, process_family, send_signal

_PROGRAM = b"antiphon.engines.llama.server_program"
_STREAMS = 2
_PAUSE_S = 3.0
#: Seconds in which an answer has to end, and in which a killed process has to be started again.
_PATIENCE_S = 60.0


class EngineServer:
    """The server with its clients. ``gguf``: the model that llama.cpp runs. ``story``: the answer
    of the other model, ``[models.story]`` in the settings ``models``."""

    def __init__(self, folder: Path, gguf: Path, models: str, story: str) -> None:
        engine = f'[models.llama]\nsource = "{gguf}"\nthreads = 1\ncontext_size = 1024\n'
        store = f"sqlite:{folder}/a.db"
        self._place = Place(folder, store, f"{models}{engine}", folder.with_suffix(".log"))
        self._story = story
        self.counts = Counter[str]()

    async def run(self, end: float) -> None:
        """Kill the process again and again until ``end``, in seconds of ``time.monotonic``."""
        await asyncio.to_thread(self._place.start)
        try:
            async with httpx.AsyncClient(base_url=self._place.url, timeout=_PATIENCE_S) as http:
                while time.monotonic() < end:
                    await self._kill_once(http)
                    await asyncio.sleep(_PAUSE_S)
        finally:
            await asyncio.to_thread(self._place.kill)

    async def _kill_once(self, http: httpx.AsyncClient) -> None:
        begun = [asyncio.Event() for _ in range(_STREAMS)]
        async with asyncio.timeout(2 * _PATIENCE_S), asyncio.TaskGroup() as group:
            answers = [group.create_task(_stream(http, "llama", event)) for event in begun]
            others = [group.create_task(_stream(http, "story")) for _ in range(_STREAMS)]
            for event in begun:
                await event.wait()
            self.counts["kill engine"] += len(killed := self._engines())
            for pid in killed:
                send_signal(pid, signal.SIGKILL)
        for answer in map(asyncio.Task.result, answers):
            self.counts[answer["status"]] += 1
            if answer["status"] == "failed":
                raise Violation(f"an answer whose engine was killed says {answer['error']}")
        for other in map(asyncio.Task.result, others):
            if other["output"][0]["content"][0]["text"] != self._story:
                raise Violation(f"another model noticed that the engine was killed: {other}")
        async with asyncio.timeout(_PATIENCE_S):
            again = await _stream(http, "llama", limit=4)
        if again["status"] != "incomplete":
            raise Violation(f"the engine was not started again: {again}")

    def _engines(self) -> list[int]:
        assert self._place.server is not None
        family = process_family(self._place.server.process.pid)
        return [pid for pid in family if _PROGRAM in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def _stream(
    http: httpx.AsyncClient, model: str, begun: asyncio.Event | None = None, *, limit: int = 80
) -> dict[str, Any]:
    """Stream a response and return it as it ended. ``begun``: set when it has text."""
    fields = {"max_output_tokens": limit} if model == "llama" else {}
    body = {"model": model, "input": "Tell a very long story.", "stream": True, **fields}
    response: dict[str, Any] = {}
    async with http.stream("POST", "responses", json=body) as answer:
        if answer.status_code != 200:
            raise Violation(f"{model}: {answer.status_code} {(await answer.aread()).decode()}")
        async for line in answer.aiter_lines():
            event = json.loads(line[6:]) if line.startswith("data: {") else {}
            response = event.get("response", response)
            if begun is not None and event.get("type") == "response.output_text.delta":
                begun.set()
    if begun is not None:
        begun.set()
    if response.get("status") not in ("completed", "incomplete", "failed"):
        raise Violation(f"the stream of {model} broke off: {response}")
    return response
