"""``llama_cost``: what a token of the embedded llama.cpp costs, compared with llama-server, the
server of the same llama.cpp, with the same model and samplers, and one thread each."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.real.embedded_model import smollm2

from .load import Plan, load
from .peers.llama_server import command as llama_server_command
from .peers.servers import Peer, PeerProcess, started
from .peers.upstream import MODEL
from .table import Line, median

_TOKENS, _ROUNDS, _PARALLEL, _CONTEXT = 48, 3, 16, 512
_DRY = {
    "dry_multiplier": 0.8,
    "dry_base": 1.75,
    "dry_allowed_length": 8,
    "dry_penalty_last_n": 1024,
}
_USUAL = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05}
#: Name → fields of requests to Antiphon and to llama-server. In Antiphon, DRY is a setting.
_SAMPLERS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "greedy": ({"temperature": 0}, {"temperature": 0}),
    "usual samplers": (_USUAL, _USUAL),
    "all tokens": ({**_USUAL, "top_k": 0, "min_p": 0}, {**_USUAL, "top_k": 0, "min_p": 0}),
    "DRY and penalty": (
        {**_USUAL, "repetition_penalty": 1.05},
        {**_USUAL, **_DRY, "repeat_penalty": 1.05},
    ),
}


#: The measured samplers and numbers of streams.
_ROWS = (("greedy", 4), *((name, streams) for name in _SAMPLERS for streams in (1, 16)))


def llama_cost() -> Iterator[Line]:
    """CPU time of a token of Antiphon and of llama-server. Each round measures all rows, so ratios
    compare what was measured at the same time."""
    with ExitStack() as stack:
        plain = _start(stack, _antiphon("threads = 1"))
        dry = _start(stack, _antiphon(f"threads = 1\nengine_options = {_inline(_DRY)}"))
        other = _start(stack, llama_server_command(_PARALLEL, _CONTEXT))
        for server in (plain, dry, other):  # all slots have computed the prompt
            load(_plan(server, _PARALLEL, {}))
        spent: dict[tuple[str, int], list[tuple[float, float]]] = {each: [] for each in _ROWS}
        for _ in range(_ROUNDS):
            for (name, streams), pairs in spent.items():
                ours, theirs = _SAMPLERS[name]
                mine = _cpu_ms(dry if "DRY" in name else plain, streams, ours)
                pairs.append((mine, _cpu_ms(other, streams, theirs)))
    for (name, streams), pairs in spent.items():
        mine, its = (median(each) for each in zip(*pairs, strict=True))
        yield Line(
            what=f"llama.cpp: CPU a token, {name}, {streams} streams",
            value=median([one / another for one, another in pairs]),
            unit="x llama-server",
            at_most=1.1,
            note=f"{mine:.1f} to {its:.1f} ms",
        )
    usual = spent["usual samplers", 1]
    for name in ("all tokens", "DRY and penalty"):
        pairs = spent[name, 1]
        yield Line(
            what=f"llama.cpp: CPU a token, {name}",
            value=median([one[0] / two[0] for one, two in zip(pairs, usual, strict=True)]),
            unit="x usual",
            at_most=1.3,
        )


def many_streams() -> Iterator[Line]:
    """Tokens a second of 16 streams against one, with the engine that ``auto`` chooses."""
    with ExitStack() as stack:
        server = _start(stack, _antiphon('engine = "auto"'))
        load(_plan(server, _PARALLEL, {}))  # all slots have computed the prompt
        rates = [(_rate(server, 1), _rate(server, 16)) for _ in range(_ROUNDS)]
        one, many = (median(each) for each in zip(*rates, strict=True))
        yield Line(
            what="auto: tokens a second, 16 streams",
            value=many / one,
            unit="x one",
            at_least=2,
            note=f"{many:.0f} to {one:.0f} tokens/s",
        )


def _start(stack: ExitStack, command: Any) -> PeerProcess:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    peer = Peer(name="", program=Path(sys.executable), command=command)
    return stack.enter_context(started(peer, "", folder))


def _antiphon(settings: str) -> Any:
    # The default model's own samplers do not apply to its file.
    def command(port: int, upstream: str, folder: Path) -> list[str]:
        config = folder / "antiphon.toml"
        config.write_text(
            f'[models.{MODEL}]\nsource = "{smollm2()}"\nparallel = {_PARALLEL}\n'
            f"context_size = {_CONTEXT}\n{settings}\n"
        )
        flags = ["--config", str(config), "--port", str(port), "--store", f"sqlite:{folder}/a.db"]
        return [sys.executable, "-m", "antiphon", "serve", *flags]

    return command


def _inline(table: Mapping[str, object]) -> str:
    return "{ " + ", ".join(f"{key} = {value}" for key, value in table.items()) + " }"


def _plan(server: PeerProcess, streams: int, fields: Mapping[str, Any]) -> Plan:
    body = {
        "model": MODEL,
        "input": "Tell me a story about the sea.",
        "max_output_tokens": _TOKENS,
        "ignore_eos": True,
        "stream": True,
        "store": False,
        **fields,
    }
    return Plan(port=server.port, body=json.dumps(body), connections=streams, requests=streams)


def _cpu_ms(server: PeerProcess, streams: int, fields: Mapping[str, Any]) -> float:
    before = server.cpu_s
    load(_plan(server, streams, fields))
    return (server.cpu_s - before) / streams / _TOKENS * 1000


def _rate(server: PeerProcess, streams: int) -> float:
    return streams * _TOKENS / load(_plan(server, streams, {"temperature": 0})).wall_s
