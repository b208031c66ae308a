"""Prefixes outlive a server that is killed, and loading a model stalls nobody."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import Server, serving
from tests.real.embedded_model import smollm2

pytestmark = pytest.mark.e2e

_WAIT_S = 240
HEAD = "You answer as a pirate would, about the sea, the ships and the weather of the day. " * 18
GREEDY = {"temperature": 0, "max_output_tokens": 16, "ignore_eos": True}


def create(server: Server, **fields: Any) -> Any:
    body = {"instructions": HEAD, **GREEDY, **fields}
    answer = httpx.post(f"{server.url}/responses", json=body, timeout=_WAIT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(response: Any) -> int:
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])


def text(response: Any) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def disk_bytes(server: Server) -> int:
    (model,) = httpx.get(f"{server.root}/antiphon/models").json()["data"][:1]
    return int(model["prompt_cache"]["disk_bytes"])


def wait_until_written(server: Server) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not disk_bytes(server):
        assert time.monotonic() < deadline


def test_conversation_continues_after_kill_9(tmp_path: Path) -> None:
    """Its prefix is not computed again, its greedy text is the same, and its files go with it."""
    with serving(tmp_path) as server:
        first = create(server, input="Tell a story.")
        wait_until_written(server)
        following = {"input": "Go on.", "previous_response_id": first["id"]}
        undisturbed = create(server, **following, store=False)
        server.kill()
    used = first["usage"]["total_tokens"]
    with serving(tmp_path) as server:
        second = create(server, **following)
        assert cached(second) >= 0.99 * (used - 4)
        assert text(second) == text(undisturbed)
        deadline = time.monotonic() + _WAIT_S
        for response in (second, first):
            deleted = httpx.delete(f"{server.url}/responses/{response['id']}", timeout=_WAIT_S)
            assert deleted.status_code == 200
        folder = tmp_path / "responses.db.prefixes"
        while list(folder.rglob("*.state")):
            assert time.monotonic() < deadline


def test_background_run_that_is_taken_over_continues_from_the_kept_prefix(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        first = create(server, input="Count from 1 to 50, separated by commas.")
        wait_until_written(server)
        following = {"input": "Repeat it.", "previous_response_id": first["id"]}
        undisturbed = create(server, **following, max_output_tokens=60, store=False)
        running = create(server, **following, max_output_tokens=60, background=True)
        server.kill()
    with serving(tmp_path) as server:
        deadline = time.monotonic() + _WAIT_S
        while (found := _retrieve(server, running["id"]))["status"] in ("queued", "in_progress"):
            assert time.monotonic() < deadline
        assert found["status"] == "completed" or found["incomplete_details"]
        assert text(found) == text(undisturbed)
        assert cached(found) >= 0.99 * (first["usage"]["total_tokens"] - 4)


def _retrieve(server: Server, id: str) -> Any:
    return httpx.get(f"{server.url}/responses/{id}", timeout=_WAIT_S).json()


def test_nothing_is_written_for_responses_that_are_not_stored(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        create(server, input="Tell a story.", store=False)
        assert cached(create(server, input="Tell a story.", store=False)) > 300
    assert not list((tmp_path / "responses.db.prefixes").rglob("*.state"))


def test_loading_a_model_stalls_no_request(tmp_path: Path) -> None:
    """Its binding holds the interpreter's lock for as long as it loads: some seconds here."""
    model = f'[models.late]\nsource = "{smollm2()}"\nload = "demand"\nthreads = 1\n'
    with serving(tmp_path, model=model) as server:
        done = threading.Event()
        took: list[float] = []

        def load() -> None:
            started = time.monotonic()
            httpx.post(f"{server.root}/antiphon/models/late/load", timeout=_WAIT_S)
            took.append(time.monotonic() - started)
            done.set()

        loading = threading.Thread(target=load)
        loading.start()
        longest = 0.0
        with httpx.Client(base_url=server.root) as client:
            while not done.is_set():
                asked = time.monotonic()
                assert client.get("/health", timeout=_WAIT_S).status_code == 200
                longest = max(longest, time.monotonic() - asked)
        loading.join()
        assert longest < took[0] / 2
