"""``python -m bench.peers [ROUNDS [NAME…]]``: compare servers of the Responses API in a table.

All servers run at the same time over one upstream, and every measurement visits them in turn: on a
shared machine only the ratios of such a run mean something. CPU is that of all processes of a
server. ``-`` marks a feature that a server lacks, and why is printed below the table; a server that
is not installed is left out (``make peers`` installs all).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.load import Plan, load
from bench.table import median

from .servers import MODEL_PEERS, PEERS, Peer, PeerProcess, llama_server, started
from .upstream import CALLS, MODEL

#: Turns of the stored chain, and streams that are slow at the same time.
_TURNS, _SLOW_STREAMS = 20, 256
_AGENT_TURNS = 43
_CONNECTIONS = 16
#: Tokens of an answer of the real model.
_TOKENS = 48


class Unsupported(Exception):
    """The server lacks the feature. The message says what happened instead."""


#: A measurement of one server; its figures by the names of columns.
Figures = dict[str, float]


def _post(server: PeerProcess, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": "hi", **fields}
    return _call(server, "/v1/responses", json.dumps(body).encode())


def _call(server: PeerProcess, path: str, body: bytes | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_read(server, path, body))
    return answer


def _read(server: PeerProcess, path: str, body: bytes | None = None) -> bytes:
    headers = {"content-type": "application/json", "authorization": "Bearer none"}
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            content: bytes = reply.read()
            return content
    except urllib.error.HTTPError as error:
        raise Unsupported(f"HTTP {error.code}: {error.read()[:200].decode()}") from None


def _load(server: PeerProcess, requests: int, connections: int, **fields: Any) -> Figures:
    body = json.dumps({"model": MODEL, "input": "hi", **fields})
    requests = max(min(requests, _CONNECTIONS), int(requests * server.peer.share))
    connections = min(connections, requests)
    before = server.cpu_s
    plan = Plan(port=server.port, body=body, connections=connections, requests=requests)
    try:
        result = load(plan)
    except subprocess.CalledProcessError as error:
        raise Unsupported(error.stderr.strip().rpartition("\n")[2][:200]) from None
    spent = server.cpu_s - before
    return {
        "requests/s": requests / result.wall_s,
        "CPU ms": spent / requests * 1000,
        "events": float(result.events),
        "p50 ms": sorted(result.first_s)[len(result.first_s) // 2] * 1000,
        "p99 ms": sorted(result.first_s)[int(len(result.first_s) * 0.99)] * 1000,
    }


def _plain(server: PeerProcess) -> Figures:
    return _load(server, 200, _CONNECTIONS, store=True)


def _streamed(server: PeerProcess) -> Figures:
    return _load(server, 200, _CONNECTIONS, store=True, stream=True)


def _alone(server: PeerProcess) -> Figures:
    """One request at a time: the latency that the server adds."""
    return _load(server, 60, 1, store=True)


def _make_chain(server: PeerProcess) -> str:
    """Return the id of the response before the last turn. Raises ``Unsupported``."""
    previous: str | None = None
    for turn in range(1, _TURNS):
        reply = _post(server, store=True, previous_response_id=previous)
        seen = reply["usage"]["input_tokens"]
        if seen != 2 * turn - 1:
            raise Unsupported(f"the model sees {seen} items in turn {turn}, not {2 * turn - 1}")
        previous = reply["id"]
    assert previous is not None
    return previous


def _late_turn(chains: dict[int, str]) -> Callable[[PeerProcess], Figures]:
    def measure(server: PeerProcess) -> Figures:
        if server.pid not in chains:
            chains[server.pid] = _make_chain(server)
        return _load(server, 100, _CONNECTIONS, previous_response_id=chains[server.pid])

    return measure


def _background(server: PeerProcess) -> Figures:
    """Background runs one after the other, each polled until it has ended."""
    count, before, start = 20, server.cpu_s, time.perf_counter()
    for _ in range(count):
        reply = _post(server, background=True, store=True)
        if reply["status"] not in ("queued", "in_progress"):
            raise Unsupported(f"the response is {reply['status']} at once: it was waited for")
        end = time.monotonic() + 10
        while reply["status"] in ("queued", "in_progress"):
            if time.monotonic() > end:
                raise Unsupported("the response does not end")
            reply = _call(server, f"/v1/responses/{reply['id']}")
    spent = server.cpu_s - before
    rate = count / (time.perf_counter() - start)
    return {"requests/s": rate, "CPU ms": spent / count * 1000}


def _followed(server: PeerProcess) -> Figures:
    """Background runs one after the other, each followed by its events until it has ended."""
    count, before, start = 20, server.cpu_s, time.perf_counter()
    for _ in range(count):
        reply = _post(server, background=True, store=True, stream=False)
        if reply["status"] not in ("queued", "in_progress"):
            raise Unsupported(f"the response is {reply['status']} at once: it was waited for")
        events = _read(server, f"/v1/responses/{reply['id']}?stream=true")
        if b"event: response.completed" not in events:
            raise Unsupported(f"no events of the run: {events[:100].decode(errors='replace')}")
    spent = server.cpu_s - before
    rate = count / (time.perf_counter() - start)
    return {"requests/s": rate, "CPU ms": spent / count * 1000}


def _agent(server: PeerProcess) -> Figures:
    """A coding agent: stored turns that add 13 KB each. CPU time of a turn, early and late."""
    words = " ".join(f"word{number}" for number in range(1500))
    previous, marks = None, list[float]()
    for turn in range(_AGENT_TURNS):
        if turn in (1, 10, _AGENT_TURNS - 10):
            marks.append(server.cpu_s)
        text = f"turn {turn}: {words}"
        previous = _post(server, input=text, store=True, previous_response_id=previous)["id"]
    late = (server.cpu_s - marks[2]) / 10
    return {
        "CPU ms": (server.cpu_s - marks[0]) / (_AGENT_TURNS - 1) * 1000,
        "CPU ms early": (marks[1] - marks[0]) / 9 * 1000,
        "CPU ms late": late * 1000,
    }


def _with_tools(server: PeerProcess) -> Figures:
    """A plain request with 25 tools (28 KB) and instructions of 9 KB."""
    properties = {
        f"argument_{n}": {"type": "string", "description": "What to look at. " * 12}
        for n in range(4)
    }
    tools = [
        {**_TOOL, "name": f"tool_{n}", "parameters": {"type": "object", "properties": properties}}
        for n in range(25)
    ]
    text = "Make no call of a tool. " * 375
    return _load(server, 200, _CONNECTIONS, store=True, tools=tools, instructions=text)


_TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def _tool_loop(server: PeerProcess) -> Figures:
    """Loops of three turns, in which the client answers two calls and sends all items again."""
    count = max(2, int(30 * server.peer.share))
    before, start = server.cpu_s, time.perf_counter()
    for _ in range(count):
        items: list[dict[str, Any]] = [{"role": "user", "content": "weather?"}]
        for turn in range(CALLS + 1):
            output = _post(server, input=items, tools=[_TOOL], store=False)["output"]
            calls = [item for item in output if item["type"] == "function_call"]
            if bool(calls) != (turn < CALLS):
                raise Unsupported(f"{len(calls)} calls in turn {turn + 1}")
            items += output
            items += [
                {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
                for call in calls
            ]
    spent = server.cpu_s - before
    rate = count / (time.perf_counter() - start)
    return {"loops/s": rate, "CPU ms": spent / count * 1000}


def _answers(streams: int) -> Callable[[PeerProcess], Figures]:
    """Streamed answers of a real model: time to the first token, and tokens a second."""

    def measure(server: PeerProcess) -> Figures:
        figures = _load(
            server,
            streams,
            streams,
            input="Tell me a story about the sea.",
            max_output_tokens=_TOKENS,
            temperature=0,
            stream=True,
            store=False,
        )
        return {
            "first token ms": figures["p50 ms"],
            "tokens/s": figures["requests/s"] * _TOKENS,
            "CPU ms a token": figures["CPU ms"] / _TOKENS,
        }

    return measure


def _slow_streams(server: PeerProcess) -> Figures:
    before = server.rss_bytes
    figures = _load(server, _SLOW_STREAMS, _SLOW_STREAMS, input="slowly", stream=True, store=False)
    if not figures["events"]:
        raise Unsupported("the answer is not streamed")
    cpu_ms = figures["CPU ms"] * _SLOW_STREAMS / figures["events"]
    return {"CPU µs an event": cpu_ms * 1000, "more MB": (server.rss_bytes - before) / 2**20}


#: A measurement, and those of its figures that are printed.
_Scenario = tuple[Callable[[PeerProcess], Figures], tuple[str, ...]]


def main(rounds: int, names: list[str]) -> None:
    """Print the tables of all scenarios, or of those whose names contain one of ``names``."""
    scripted: dict[str, _Scenario] = {
        "plain": (_plain, ("requests/s", "CPU ms")),
        "streamed": (_streamed, ("requests/s", "CPU ms")),
        "one at a time": (_alone, ("p50 ms", "p99 ms")),
        f"turn {_TURNS} of a stored chain": (_late_turn({}), ("requests/s", "CPU ms")),
        f"agent, {_AGENT_TURNS} turns of 13 KB": (
            _agent,
            ("CPU ms", "CPU ms early", "CPU ms late"),
        ),
        "plain, 25 tools": (_with_tools, ("requests/s", "CPU ms")),
        "tool loop of three turns": (_tool_loop, ("loops/s", "CPU ms")),
        "background, polled": (_background, ("requests/s", "CPU ms")),
        "background, followed": (_followed, ("requests/s", "CPU ms")),
        f"{_SLOW_STREAMS} slow streams": (_slow_streams, ("CPU µs an event", "more MB")),
    }
    figures = ("first token ms", "tokens/s", "CPU ms a token")
    real: dict[str, _Scenario] = {
        f"real model, {streams} streams": (_answers(streams), figures) for streams in (1, 4)
    }
    for scenarios, upstream, peers in (
        (scripted, _scripted_upstream, PEERS),
        (real, _real_upstream, MODEL_PEERS),
    ):
        chosen = {
            name: scenario
            for name, scenario in scenarios.items()
            if not names or any(each in name for each in names)
        }
        if chosen:
            with ExitStack() as stack:
                servers = _start_all(stack, upstream(stack), peers)
                _print_table(servers, chosen, rounds)


def _print_table(servers: list[PeerProcess], scenarios: dict[str, _Scenario], rounds: int) -> None:
    columns = [server.peer.name for server in servers]
    print(f"| | | {' | '.join(columns)} |\n|---|---|{'---:|' * len(columns)}", flush=True)
    notes: list[str] = []
    for name, (measure, figures) in scenarios.items():
        found: dict[int, list[Figures]] = {server.pid: [] for server in servers}
        for turn in range(rounds + 1):
            for server in servers if turn % 2 else servers[::-1]:
                try:
                    result = measure(server)
                except Unsupported as error:
                    if turn == 0:
                        notes.append(f"{server.peer.name}, {name}: {error}")
                    continue
                if turn:  # the first round warms up
                    found[server.pid].append(result)
        for figure in figures:
            cells = [_cell(found[server.pid], figure) for server in servers]
            print(f"| {name} | {figure} | {' | '.join(cells)} |", flush=True)
    memory = [f"{server.rss_bytes / 2**20:.0f}" for server in servers]
    print(f"| memory at the end | MB | {' | '.join(memory)} |")
    print("", *notes, "", sep="\n")


def _scripted_upstream(stack: ExitStack) -> str:
    upstream = subprocess.Popen(
        [sys.executable, "-m", "bench.peers.upstream"], stdout=subprocess.PIPE, text=True
    )
    stack.callback(upstream.wait)
    stack.callback(upstream.terminate)
    assert upstream.stdout is not None
    return f"http://127.0.0.1:{int(upstream.stdout.readline())}"


def _real_upstream(stack: ExitStack) -> str:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    upstream = stack.enter_context(started(llama_server(), "", folder))
    return f"http://127.0.0.1:{upstream.port}"


def _start_all(stack: ExitStack, url: str, peers: Sequence[Peer]) -> list[PeerProcess]:
    servers: list[PeerProcess] = []
    for peer in peers:
        if not peer.program.exists():
            print(f"{peer.name} is not installed: make peers", file=sys.stderr)
            continue
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers.append(stack.enter_context(started(peer, url, folder)))
    return servers


def _cell(results: list[Figures], figure: str) -> str:
    if not results:
        return "-"
    value = median(result[figure] for result in results)
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 5, sys.argv[2:])
