"""``default_server``: what a user of a fresh server with default settings waits for: how much of
their prompts is in the cache, also after ``kill -9``, and how much memory the server takes."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct

from .peers.servers import Peer, PeerProcess, started
from .table import Line

_WORDS = (
    "river stone window paper garden letter mountain silver evening market bridge candle forest "
    "winter summer harbor engine travel signal museum number picture morning village doctor"
).split()
#: Words of the head that conversations share, and of a prompt of about 2,000 tokens.
_HEAD, _LONG = 600, 1_960
_TENANTS = ("one", "two")
_KEY = '[[keys]]\nname = "{0}"\ntenant = "{0}"\nsha256 = "{1}"\n'


class _Turn(Struct):
    """A response: its id, its tokens, and the seconds to its first text."""

    id: str
    input: int
    cached: int
    output: int
    first_s: float

    @property
    def after(self) -> int:
        """The tokens of the conversation that are computed after this turn."""
        return self.input + self.output - 1


class _Share:
    """Sums up the cached tokens of turns, and those that an ideal cache has."""

    def __init__(self) -> None:
        self.cached = self.best = self.behind = 0

    def add(self, turn: _Turn, best: int) -> None:
        best = min(best, turn.input - 1)
        self.cached += min(turn.cached, best)
        self.best += best
        self.behind = max(self.behind, best - turn.cached)

    def line(self, what: str) -> Line:
        """The share, as a line."""
        note = f"{self.cached:,} of {self.best:,} tokens, at most {self.behind} behind"
        value = 100 * self.cached / self.best
        return Line(what=f"default server: {what}", value=value, unit="%", at_least=99, note=note)


def default_server() -> Iterator[Line]:
    """Run the measurements, on three fresh servers."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _conversations(Path(folder))
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as server:
        yield from _memory(server)
        yield from _agents(server)
        yield _loading(server)
    with tempfile.TemporaryDirectory() as folder:
        keys = [_KEY.format(each, sha256(_key(each).encode()).hexdigest()) for each in _TENANTS]
        Path(folder, "antiphon.toml").write_text("".join(keys))
        with serving(Path(folder)) as server:
            yield _tenants(server)


@contextmanager
def serving(folder: Path) -> Iterator[PeerProcess]:
    """Start a fresh server with default settings, whose files are in ``folder``."""
    peer = Peer(name="Antiphon", program=Path(sys.executable), command=_command)
    with started(peer, "", folder) as server:
        yield server


def _command(port: int, upstream: str, folder: Path) -> list[str]:
    store = f"sqlite:{folder}/responses.db"
    return [sys.executable, "-m", "antiphon", "serve", "--port", str(port), "--store", store]


def _key(tenant: str) -> str:
    return f"{tenant}-key-of-a-bench"


def random_text(count: int, seed: int) -> str:
    """Return ``count`` words, which depend on ``seed``."""
    return " ".join(random.Random(seed).choices(_WORDS, k=count))


def _ask(server: PeerProcess, text: str, *, key: str = "", **fields: Any) -> _Turn:
    """Stream a response with a short answer."""
    body = {"input": text, "stream": True, "max_output_tokens": 8, "temperature": 0, **fields}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/v1/responses",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {key}"},
    )
    start, first, last = time.perf_counter(), 0.0, b""
    with urllib.request.urlopen(request, timeout=600) as reply:
        for line in reply:
            if not first and b"output_text.delta" in line:
                first = time.perf_counter() - start
            if line.startswith(b"data: {") and b'"usage":{' in line:
                last = line
    response = json.loads(last[6:])["response"]
    usage = response["usage"]
    return _Turn(
        response["id"],
        usage["input_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        usage["output_tokens"],
        first,
    )


# --- prefixes ------------------------------------------------------------------------------------


def _conversations(folder: Path) -> Iterator[Line]:
    """Retries, six conversations with one head, ``kill -9``, and their third turns."""
    order = random.Random(1)
    retries, heads, second, third = _Share(), _Share(), _Share(), _Share()
    with serving(folder) as server:
        text = random_text(500, 99)
        first = _ask(server, text)
        for _ in range(3):
            retries.add(_ask(server, text), first.input)
        yield retries.line("three retries")
        instructions = random_text(_HEAD, 1)
        turns = [_ask(server, random_text(40, n), instructions=instructions) for n in range(10, 16)]
        common = min(each.cached for each in turns[1:])
        own = max(each.input - each.cached for each in turns[1:])
        heads.add(turns[1], common)
        yield Line(
            what="default server: not cached, conversations 2 to 6 with one head",
            value=own,
            unit="tokens",
            at_most=128,
            note=f"{common} of {turns[1].input} cached; the message has 40 words",
        )
        for number in order.sample(range(6), 6):
            turns[number] = _next(server, turns[number], second, instructions)
        yield second.line("second turns in another order")
        long = _ask(server, random_text(_LONG, 2))
        _wait_for_disk(server)
        os.kill(server.pid, signal.SIGKILL)
    with serving(folder) as server:
        for number in order.sample(range(6), 6):
            turns[number] = _next(server, turns[number], third, instructions)
        yield third.line("third turns after kill -9")
        restored = _ask(server, "Go on.", previous_response_id=long.id)
        cold = _ask(server, random_text(_LONG, 3))
        yield Line(
            what="default server: first token after kill -9 against cold",
            value=restored.first_s / cold.first_s,
            unit="x",
            at_most=0.05,
            note=f"{restored.first_s:.2f} to {cold.first_s:.2f} s, {cold.input:,} tokens",
        )


def _next(server: PeerProcess, turn: _Turn, share: _Share, instructions: str) -> _Turn:
    """Continue a conversation."""
    following = _ask(server, "And then?", previous_response_id=turn.id, instructions=instructions)
    share.add(following, turn.after)
    return following


def _wait_for_disk(server: PeerProcess) -> None:
    """Wait until the states of the last turns are on disk."""
    known, quiet = -1, 0
    while quiet < 5:
        time.sleep(0.2)
        found = _get(server, "/antiphon/models")["data"][0]["prompt_cache"]["disk_bytes"]
        known, quiet = found, quiet + 1 if found == known else 0


def _agents(server: PeerProcess) -> Iterator[Line]:
    """32 agents with one head over four slots, three turns each."""
    share, instructions = _Share(), random_text(_HEAD, 4)
    head = _ask(server, "Hi.", instructions=instructions).input - 8

    def run(number: int) -> list[tuple[_Turn, int]]:
        found, best, previous = [], head, None
        for turn in range(3):
            text = random_text(20, 1000 * number + turn)
            fields = {} if previous is None else {"previous_response_id": previous}
            answer = _ask(server, text, instructions=instructions, **fields)
            found.append((answer, best))
            best, previous = answer.after, answer.id
        return found

    with ThreadPoolExecutor(32) as agents:
        for found in agents.map(run, range(32)):
            for turn, best in found:
                share.add(turn, best)
    yield share.line("32 agents over four slots")


def _tenants(server: PeerProcess) -> Line:
    """Two tenants with the same instructions, in turn. No tenant may use the other one's state."""
    share, instructions = _Share(), random_text(_HEAD, 5)
    turns: dict[tuple[str, int], _Turn] = {}
    foreign = 0
    for turn in range(3):
        for number in range(3):
            for tenant in _TENANTS:
                earlier = turns.get((tenant, number))
                fields = {} if earlier is None else {"previous_response_id": earlier.id}
                text = random_text(20, 100 * number + turn)
                answer = _ask(server, text, key=_key(tenant), instructions=instructions, **fields)
                if earlier is not None:
                    share.add(answer, earlier.after)
                elif number == 0 and tenant == "two":
                    foreign += answer.cached
                turns[tenant, number] = answer
    line = share.line("two tenants in turn")
    return Line(
        what=line.what,
        value=line.value,
        unit=line.unit,
        at_least=99,
        note=f"{line.note}; {foreign} of the other tenant",
    )


# --- memory and loading --------------------------------------------------------------------------


def _memory(server: PeerProcess) -> Iterator[Line]:
    """Memory with a model that the first request has loaded, after it was loaded before."""
    _unload(server)
    _ask(server, "Hi.")
    yield _memory_line(server, "memory after the first answer", 300)
    for number in range(4):
        _ask(server, random_text(_LONG, 20 + number))
    yield _memory_line(server, "memory after four prompts of 2,000 tokens", 450)


def _memory_line(server: PeerProcess, what: str, limit: int) -> Line:
    anonymous, mapped = (sum(_rss(pid, name) for pid in server.pids) for name in ("Anon", "File"))
    kept = _get(server, "/antiphon/models")["data"][0]["prompt_cache"]["bytes"]
    note = f"and {mapped / 2**20:.0f} MB of files; cache {kept / 2**20:.0f} MB"
    return Line(
        what=f"default server: {what}",
        value=anonymous / 2**20,
        unit="MB",
        at_most=limit,
        note=note,
    )


def _rss(pid: int, kind: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(f"Rss{kind}:"))


def _get(server: PeerProcess, path: str, method: str = "GET") -> Any:
    url = f"http://127.0.0.1:{server.port}{path}"
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=120) as reply:
        return json.loads(reply.read() or b"null")


def _loading(server: PeerProcess) -> Line:
    """The slowest answer of ``/health`` while a model is loaded."""
    name = _unload(server)
    load = threading.Thread(target=_get, args=(server, f"/antiphon/models/{name}/load", "POST"))
    load.start()
    slowest, count = 0.0, 0
    while load.is_alive():
        start = time.perf_counter()
        _get(server, "/health")
        slowest, count = max(slowest, time.perf_counter() - start), count + 1
    return Line(
        what="default server: slowest /health while a model loads",
        value=slowest * 1000,
        unit="ms",
        at_most=100,
        note=f"{count} requests",
    )


def _unload(server: PeerProcess) -> str:
    """Unload the only model. Returns its name."""
    name: str = _get(server, "/antiphon/models")["data"][0]["id"]
    _get(server, f"/antiphon/models/{name}/unload", "POST")
    return name
