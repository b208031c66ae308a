"""Measure what users of real clients see when the upstream or the server fails.

``python -m tests.clients.failures FOLDER`` runs every client in every failure and prints one row of
a table for each; the whole outputs are in FOLDER. Programs of the clients are found in ``PATH``.
Run it without a network: ``unshare -n sh -c 'ip link set lo up; …'``.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.upstream.fakes import Answer, Fake, chunks, fake, json_answer

_PORT = 18312
_WAIT_S = 60
_WORDS = [{"content": f"part{number} "} for number in range(30)]
_SETTINGS = """
port = {port}
store = "memory:"
drain_s = 0.5
log_format = "json"
[models.tiny]
engine = "chat_completions"
source = "{upstream}"
upstream_model = "up"
context_size = 64000
"""


def _refusal(status: int, code: str, message: str, **headers: str) -> Answer:
    error = {"message": message, "type": code, "param": None, "code": code}
    return json_answer({"error": error}, status, **headers)


#: Failure → what the upstream answers.
_UPSTREAM: Mapping[str, Answer] = {
    "no credit": _refusal(429, "insufficient_quota", "You exceeded your current quota."),
    "bad key": _refusal(401, "invalid_api_key", "Incorrect API key provided."),
    "busy": _refusal(429, "rate_limit_exceeded", "Slow down.", **{"retry-after": "5"}),
    "overloaded": _refusal(503, "server_error", "Overloaded."),
    "breaks": Answer(chunks(*_WORDS)[:10], cut=True),
}
#: Failure → the signal that ends the server in the middle of an answer.
_SIGNALS = {"stopped": signal.SIGTERM, "killed": signal.SIGKILL}

_PYTHON = """
import openai
try:
    with openai.OpenAI().responses.stream(model="tiny", input="Say hello.") as stream:
        for event in stream:
            pass
        print("ANSWER", len(stream.get_final_response().output_text))
except openai.APIError as error:
    print(type(error).__name__, error)
"""
_NODE = """
import OpenAI from "openai";
try {
  const stream = new OpenAI().responses.stream({ model: "tiny", input: "Say hello." });
  for await (const event of stream);
  console.log("ANSWER", (await stream.finalResponse()).output_text.length);
} catch (error) { console.log(error.constructor.name, error.message); }
"""
_LAUNCH = (sys.executable, "-m", "antiphon", "launch", "--port", str(_PORT))
_CLIENTS: Mapping[str, Sequence[str]] = {
    "openai (Python)": (sys.executable, "-c", _PYTHON),
    "openai (Node)": ("node", "--input-type=module", "-e", _NODE),
    "codex": (*_LAUNCH, "codex", "exec", "--skip-git-repo-check", "Say hello."),
    "opencode": (*_LAUNCH, "opencode", "run", "Say hello."),
    "pi": (*_LAUNCH, "pi", "-p", "Say hello."),
}


class _Server:
    """The server, which can be ended and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.log = folder / "server.log"

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "antiphon", "serve"),
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        async with asyncio.timeout(_WAIT_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", _PORT)
                except OSError:
                    await asyncio.sleep(0.1)
                else:
                    writer.close()
                    return

    async def end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        await self._process.wait()

    def requests(self) -> int:
        """The requests for responses in the server's log."""
        return len(re.findall(r'"path": ?"/v1/responses"', self.log.read_text()))


async def _measure(folder: Path, client: str, failure: str, upstream: Fake, server: _Server) -> str:
    before = server.requests()
    upstream.asked.clear()
    slow = failure in _SIGNALS
    answer = Answer(chunks(*_WORDS)[:5], hang=True) if slow else _UPSTREAM[failure]
    whole = Answer(chunks(*_WORDS))
    upstream.routes["/v1/chat/completions"] = [answer, whole] if slow else [answer]
    output = folder / f"{client}-{failure}.txt".replace(" ", "-")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *_CLIENTS[client],
            cwd=work if client not in ("openai (Node)",) else os.environ["NODE_CLIENTS"],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={
                **os.environ,
                "OPENAI_BASE_URL": f"http://127.0.0.1:{_PORT}/v1",
                "OPENAI_API_KEY": "none",
                "NO_COLOR": "1",
            },
        )
        if slow:
            async with asyncio.timeout(_WAIT_S):
                while not upstream.asked:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(1)
            await server.end(_SIGNALS[failure])
            await asyncio.sleep(2)
            await server.start()
        try:
            code = str(await asyncio.wait_for(process.wait(), _WAIT_S))
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            code = f"still running after {_WAIT_S} s"
    shown = re.sub(r"\s+", " ", re.sub(r"\x1b\[[\d;]*m", "", output.read_text(errors="replace")))
    return (
        f"| {failure} | {client} | {server.requests() - before} | {len(upstream.bodies)} |"
        f" {code} | {shown[-300:]} |"
    )


def _print_row(row: str) -> None:
    sys.stdout.write(row + "\n")
    sys.stdout.flush()


async def _main(folder: Path, clients: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    async with fake(v1__models=json_answer({"data": [{"id": "up"}]})) as upstream:
        settings = _SETTINGS.format(port=_PORT, upstream=f"{upstream.url}/v1")
        (folder / "antiphon.toml").write_text(settings)
        server = _Server(folder)
        await server.start()
        _print_row("| failure | client | requests | upstream requests | exit | end of the output |")
        for failure in (*_UPSTREAM, *_SIGNALS):
            for client in clients:
                _print_row(await _measure(folder, client, failure, upstream, server))
        await server.end(signal.SIGTERM)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]).resolve(), sys.argv[2:] or list(_CLIENTS)))
