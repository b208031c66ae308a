"""The server process: start, shutdown, crash, and the message when it cannot start."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.e2e.server import antiphon, serving

pytestmark = pytest.mark.e2e

KEY = "sk-test"


def test_sigterm_finishes_streams_and_exits_cleanly(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        body = {"model": "smollm2", "input": "Count.", "stream": True, "max_output_tokens": 30}
        with httpx.stream("POST", f"{server.url}/responses", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(line for line in lines if "output_text.delta" in line)
            server.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert "data: [DONE]" in rest
        assert server.process.wait(30) == 0


async def _announced(url: str, answered: list[str]) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        while True:
            body = {"model": "smollm2", "input": "Hi.", "max_output_tokens": 2}
            answer = (await client.post(f"{url}/responses", json=body)).json()
            answered.append(answer["id"])


def test_killed_server_keeps_every_announced_response(tmp_path: Path) -> None:
    dice = random.Random(7)
    answered: list[str] = []
    for _ in range(3):
        with serving(tmp_path) as server:

            async def until_killed(server: object = server) -> None:
                async with asyncio.timeout(60):
                    askers = [
                        asyncio.create_task(_announced(server.url, answered))  # type: ignore[attr-defined]
                        for _ in range(3)
                    ]
                    goal = len(answered) + dice.randint(2, 6)
                    while len(answered) < goal:
                        await asyncio.sleep(0.01)
                    server.kill()  # type: ignore[attr-defined]
                    await asyncio.gather(*askers, return_exceptions=True)

            asyncio.run(until_killed())
    with serving(tmp_path) as server:
        for response_id in answered:
            found = httpx.get(f"{server.url}/responses/{response_id}")
            assert found.status_code == 200
            assert found.json()["status"] in ("completed", "incomplete")


def test_configured_keys_are_required(tmp_path: Path) -> None:
    import hashlib

    digest = hashlib.sha256(KEY.encode()).hexdigest()
    keys = f'[[keys]]\ntenant = "a"\nsha256 = "{digest}"\n'
    with serving(tmp_path, keys) as server:
        url = f"{server.url}/models"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url).json()["error"]["code"] == "invalid_api_key"
        assert httpx.get(url, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert httpx.get(url, headers={"authorization": f"Bearer {KEY}"}).status_code == 200
        assert httpx.get(f"{server.root}/health").status_code == 200


def test_setup_error_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x00" * 100)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments in (
            ("serve", str(tmp_path / "nothing.gguf"), "--port", "0"),
            ("serve", str(broken), "--port", "0"),
            ("serve", "--port", port),
            ("serve", "--no-such-option", "1"),
        ):
            ended = antiphon(*arguments, cwd=tmp_path)
            assert ended.returncode == 2, (arguments, ended)
            assert "Traceback" not in ended.stderr
            assert ended.stderr.strip()
    (tmp_path / "antiphon.toml").write_text("prot = 9\n")
    ended = antiphon("serve", cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1 and "port" in ended.stderr
